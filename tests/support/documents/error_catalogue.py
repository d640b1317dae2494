"""The catalogue of errors: what users can cause, why, and what to do.

Each entry lists the places in the code that make its messages (`support.documents.error_messages`),
and the tests that provoke it. `errors_page` makes docs/reference/errors.md from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """One kind of error.

    places: where the code makes its messages: a file of the package and a function or a constant.
    After ``~``, only messages with these words are meant. tests: the tests that provoke it.
    """

    title: str
    cause: str
    what_to_do: str
    places: tuple[str, ...]
    tests: tuple[str, ...]


CATALOGUE: Final[Mapping[str, tuple[Entry, ...]]] = {
    "Options": (
        Entry(
            "An unknown option",
            "The name is misspelt, or is the name of another client's option.",
            (
                "Use the name that the message suggests. Options of the producer begin with "
                "`kafka.`, and options of the sink do not."
            ),
            places=(
                "config.py:check_names",
                "config.py:_unknown",
                "config.py:refusal",
                "config.py:of_other_client",
                "schema_registry/settings.py:of_registry_client",
                "spark/options.py:_sink_options",
                "spark/options.py:_unknown",
                "spark/options.py:not_an_option~not an option",
                "spark/options.py:_complain",
            ),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_a_misspelt_option_is_answered_with_the_right_one",
                "unit/spark/planning/test_bad_input.py::test_what_is_not_offered_is_never_what_was_meant",
                "unit/spark/planning/test_bad_input.py::test_options_that_are_wrong_together_or_by_their_own_rules",
                "unit/spark/planning/test_bad_input.py::test_what_is_not_offered_is_refused_with_the_reason",
                "unit/test_config.py::test_an_option_of_librdkafka_is_answered_with_java_s",
                "unit/test_config.py::test_an_option_that_only_librdkafka_has_is_refused_or_warned_of",
                "unit/schema_registry/test_settings.py::test_an_option_of_confluent_s_clients_is_answered_with_what_to_do",
            ),
        ),
        Entry(
            "An invalid value of an option",
            "The value has the wrong type, or is outside the range of the option.",
            "Set the option to a value that the message lists.",
            places=(
                "config.py:producer_config",
                "config.py:invalid",
                "config.py:_check_off",
                "config.py:_node",
                "config.py:_secret",
                "config.py:_check_text",
                "config.py:check_unicode",
                "spark/options.py:_lenient",
                "spark/options.py:_is_on",
                "spark/options.py:_count",
                "spark/options.py:check_given_options",
                "config.py:check_options",
                "spark/on_error.py:_on_error",
                "model.py:check_text",
                "client/assembly.py:_rack",
            ),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_a_value_that_is_none_is_refused_by_its_name",
                "unit/spark/planning/test_bad_input.py::test_options_that_are_wrong_together_or_by_their_own_rules",
                "unit/spark/planning/test_bad_input.py::test_what_can_only_be_off_is_refused_if_it_is_on",
                "unit/spark/test_on_error.py::test_what_makes_no_sense_is_refused",
                "unit/test_config.py::test_what_is_not_an_address_is_named",
                "unit/test_arguments.py::test_what_an_argument_does_not_take_is_refused_at_once",
            ),
        ),
        Entry(
            "Options that contradict each other",
            "Kafka does not allow this combination of values.",
            "Change one of the options that the message names.",
            places=(
                "config.py:_settle_idempotence",
                "config.py:_check_transactional",
                "config.py:_settle_delivery_timeout",
            ),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_options_that_are_wrong_together_or_by_their_own_rules",
                "unit/test_config.py::test_a_transactional_producer_names_all_that_it_cannot_do_without",
            ),
        ),
        Entry(
            "An option without effect",
            "The option needs another option that is not set.",
            "Set the other option, or remove this one.",
            places=(
                "spark/options.py:_new_topic",
                "spark/options.py:_delegation_token_mechanism",
                "spark/on_error.py:bad_row_policy",
                "spark/exactly_once.py:_refuse_others",
            ),
            tests=(
                "unit/spark/test_on_error.py::test_what_makes_no_sense_is_refused",
                "unit/spark/planning/test_task_tokens.py::test_options_that_mean_nothing_are_refused",
                "unit/spark/planning/test_task_tokens.py::test_tasks_need_a_listener_with_logins",
                "unit/spark/test_exactly_once.py::test_what_is_wrong_is_refused",
                "spark/test_refusals.py::test_a_wrong_option_is_refused_on_the_driver",
            ),
        ),
        Entry(
            "A topic or a folder for bad rows that cannot be used",
            "The sink cannot write bad rows to `deadLetterTopic` or `deadLetterPath`.",
            "Set a different topic, or a folder that every executor can write to.",
            places=(
                "spark/on_error.py:_topic",
                "spark/local_path.py:local_path",
                "spark/local_path.py:absolute_path",
                "spark/planning/preflight.py:make_dead_letter_path",
                "spark/planning/preflight.py:check_dead_letter_topic",
                "spark/tasks/dead_letters.py:DeadLetterFile._naming_the_folder",
                "spark/tasks/task_rows.py:TaskRows._refuse_dead_letters_own",
            ),
            tests=(
                "unit/spark/test_on_error.py::test_what_makes_no_sense_is_refused",
                "unit/spark/planning/test_planning.py::test_the_driver_makes_the_folder_for_dead_letters_and_says_where_it_cannot",
                "unit/spark/tasks/test_dead_letter_file.py::test_a_disk_that_becomes_full_is_told_by_the_option_and_leaves_no_file",
                "spark/test_task_rows.py::test_a_row_may_not_go_to_the_dead_letter_topic_by_itself",
            ),
        ),
        Entry(
            "A report that cannot be written or read",
            (
                "`reportPath` is not an absolute path of a file on the driver, or `last_reports` "
                "was called over Spark Connect."
            ),
            (
                "Set `reportPath` to a file in a folder that exists on the driver, and read that "
                "file."
            ),
            places=(
                "spark/local_path.py:absolute_path",
                "spark/planning/preflight.py:check_report_path",
                "spark/committing/report_files.py:last_reports",
            ),
            tests=(
                "unit/spark/planning/test_planning.py::test_what_is_no_file_of_the_driver_is_refused",
                "spark/test_reports.py::test_a_session_of_another_kind_is_told_about_report_path",
            ),
        ),
        Entry(
            "A listener that removes itself with Spark Connect",
            (
                "A function that a `KafkaStreamListener` calls has called `removeListener`. This "
                "would wait for ever, because `removeListener` waits until the function has "
                "returned."
            ),
            "Call `removeListener` in another thread, for example at the end of the program.",
            places=("spark/driver/listener_bus.py:ListenerBus.remove",),
            tests=(
                "unit/spark/driver/test_listener_bus.py::test_a_listener_that_removes_itself_is_told_so",
            ),
        ),
        Entry(
            "A reference that cannot be resolved",
            (
                "A reference such as `${env:NAME}` cannot be resolved on this machine, or is not "
                "allowed there."
            ),
            (
                "Set the environment variable or ship the file. If the process is not allowed to "
                "read it, change the process's environment to allow this."
            ),
            places=(
                "auth/references.py:References.resolved",
                "auth/references.py:References._value",
                "auth/references.py:References._variable",
                "auth/references.py:References._property",
                "auth/java_properties.py:_meaning",
                "auth/references.py:References._text",
                "auth/references.py:ProcessLimits.of",
                "auth/references.py:ProcessLimits.check_kind",
                "auth/references.py:ProcessLimits.check_variable",
                "auth/references.py:ProcessLimits.allowed_path",
                "auth/references.py:ProcessLimits.check_url",
                "auth/references.py:_provider",
                "auth/references.py:_absolute",
                "auth/references.py:_pattern",
                "config.py:_config_providers",
                "network/option_values.py:_allowed_path",
                "network/option_values.py:_allowed_content",
            ),
            tests=(
                "unit/auth/test_references.py::test_what_gives_nothing_is_an_error_that_shows_no_value",
                "unit/auth/test_references.py::test_what_the_process_forbids_no_option_allows",
                "unit/auth/test_references.py::test_limits_that_are_no_limits_are_refused",
                "unit/network/test_security.py::test_other_providers_and_parameters_are_rejected",
                "unit/auth/test_references.py::test_other_providers_and_parameters_are_refused",
            ),
        ),
    ),
    "Columns and rows": (
        Entry(
            "A column that is missing or has the wrong type",
            "A column that the sink needs is missing, or its type is not supported.",
            "Rename or cast the column that the message names.",
            places=(
                "spark/planning/schema.py:check_has_columns",
                "serde/__init__.py:check_each_once",
                "spark/planning/schema.py:_check",
                "serde/arrow_columns.py:check_types",
                "serde/arrow_columns.py:_check_type",
            ),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_a_column_that_is_missing_or_there_twice_is_named",
                "unit/spark/planning/test_bad_input.py::test_a_column_of_any_other_type_is_refused",
            ),
        ),
        Entry(
            "A column that Spark cannot pass to Python",
            (
                "Arrow does not support the type of the column, or a struct has two fields with "
                "the same name."
            ),
            "Cast the column to string, or drop it before the write.",
            places=("spark/planning/schema.py:_check_can_be_handed_over",),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_a_column_that_cannot_be_handed_to_python_is_refused_though_it_is_not_sent",
            ),
        ),
        Entry(
            "A column that dead letters in a folder cannot have",
            (
                "The files in `deadLetterPath` have all columns of the DataFrame, and Parquet does "
                "not support the type of a column."
            ),
            (
                "Cast the column to string, or drop it before the write. Or set `deadLetterTopic` "
                "in place of `deadLetterPath`."
            ),
            places=(
                "spark/planning/schema.py:check_dead_letters",
                "spark/tasks/dead_letters.py:DeadLetterFile.take",
            ),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_a_column_that_dead_letters_in_a_folder_cannot_have_is_refused",
                "unit/spark/tasks/test_dead_letter_file.py::test_a_year_month_interval_is_told_with_its_type",
            ),
        ),
        Entry(
            "An invalid row",
            (
                "A row has a null topic, or a topic, a partition, a timestamp or a header that "
                "Kafka does not allow."
            ),
            "Correct the row, or set `onError` to `skip` or `deadLetter`.",
            places=(
                "serde/row_rules.py:check_rows",
                "serde/row_rules.py:_null_topic",
                "serde/row_rules.py:_impossible",
                "serde/row_rules.py:_negative_partition",
                "serde/row_rules.py:_time_out_of_range",
                "serde/row_rules.py:_time_before_1970",
                "serde/row_rules.py:_null_header_key",
                "producer/partitioner.py:check_partitions",
                "model.py:check_topic_name",
                "model.py:_checked_number",
                "model.py:checked_headers",
                "model.py:_checked_header",
            ),
            tests=(
                "spark/test_task_rows.py::test_a_row_that_fails_a_task_is_told_by_its_number_in_the_task",
                "unit/serde/test_header_columns.py::test_a_header_without_a_name_is_refused",
                "unit/serde/test_timestamp_columns.py::test_seconds_that_milliseconds_have_no_room_for_are_refused",
                "unit/plugins/test_serializers.py::test_a_record_that_cannot_be_is_refused_when_it_is_made",
            ),
        ),
        Entry(
            "A record that is too large",
            "One record is larger than a limit of the producer or of the topic.",
            "Make the record smaller, or raise the limit that the message names.",
            places=(
                "errors.py:TOO_LARGE",
                "errors.py:TOO_LARGE_FOR_TOPIC",
            ),
            tests=(
                "unit/records/test_record_limits.py::test_the_first_row_over_the_first_limit_is_named_with_that_option",
                "spark/test_causes.py::test_a_fault_has_the_same_class_and_words_everywhere",
            ),
        ),
        Entry(
            "An argument of `to_kafka`",
            (
                "The argument is not a column, the DataFrame has no such column, or `key_format` "
                "is invalid."
            ),
            (
                "Pass the name of a column of the DataFrame, or a `Column`. For `key_format`, do "
                "what the message says."
            ),
            places=(
                "spark/driver/to_kafka.py:_checked_column",
                "spark/driver/to_kafka.py:_check_key_format",
                "spark/driver/to_kafka.py:_column",
                "spark/driver/to_kafka.py:_key",
                "spark/driver/to_kafka.py:_unknown",
                "spark/session.py:check_frame",
            ),
            tests=(
                "spark/test_to_kafka.py::test_a_name_that_no_column_has_is_refused_with_the_nearest",
                "spark/test_to_kafka.py::test_an_argument_that_is_neither_name_nor_column_is_refused",
                "spark/test_to_kafka.py::test_keys_keep_their_type_if_they_are_to_be_avro",
                "spark/test_to_kafka.py::test_what_is_no_data_frame_is_refused",
            ),
        ),
        Entry(
            "Rows that `atomic_layout` partitioned for a different write",
            (
                "`atomic_layout` was called with options that differ from those of the write, or "
                "the rows or the topic were changed afterwards."
            ),
            (
                "Call `atomic_layout` once, as the last step before the write, and pass the same "
                "options to both."
            ),
            places=(
                "spark/layout_mark.py:refuse_laid_out",
                "spark/layout_mark.py:check_laid_out_topic",
                "spark/layout_mark.py:_check_topics_of_rows",
                "spark/layout_mark.py:check_partition_counts",
                "spark/driver/atomic_layout.py:_refuse_unknown_topics",
                "spark/compat.py:_mapped_in_arrow",
            ),
            tests=(
                "spark/test_atomic_layout.py::test_rows_are_refused_that_were_laid_out_for_another_number_of_partitions",
                "spark/test_atomic_layout.py::test_an_outdated_layout_is_refused_on_the_driver",
                "spark/test_atomic_layout.py::test_rows_for_a_topic_that_was_not_laid_out_are_refused",
                "spark/test_atomic_layout.py::test_a_stream_is_laid_out",
                "unit/spark/test_compat.py::test_a_driver_without_pandas_is_one_sentence",
            ),
        ),
    ),
    "Sessions, saves and streams": (
        Entry(
            "A save mode other than append",
            "Records can be added to a topic, but not replaced.",
            'Write `.mode("append")`. Or call `register(spark)`, and do not call `mode()`.',
            places=(
                "spark/writer.py:mode_refusal",
                "spark/driver/hooks/writers.py:_refuse_mode",
                "spark/planning/datasource.py:KafkaDataSource.writer",
            ),
            tests=(
                "unit/spark/planning/test_bad_input.py::test_overwriting_is_refused",
                "spark/test_save_modes.py::test_register_lets_the_bare_save_append_in_a_classic_session",
            ),
        ),
        Entry(
            "Partitioning or bucketing columns",
            "These calls partition files, and a topic has no files.",
            (
                "Remove the call. The key or the column `partition` decides which partition a row "
                "goes to."
            ),
            places=("spark/driver/hooks/writers.py:_refuse_layouts",),
            tests=(
                "spark/test_streaming.py::test_a_layout_is_refused_at_the_start",
                "spark/test_save_modes.py::test_register_lets_the_bare_save_append_in_a_classic_session",
            ),
        ),
        Entry(
            "An option that is None before the format",
            (
                "Before Spark 4.3, a writer passes None on as null, and for other formats that may "
                "have a meaning. So the sink ignores it only if the format is already set."
            ),
            'Call `.format("pykafka")` first. Or omit the option.',
            places=("spark/driver/hooks/none_options.py:refuse_nulls",),
            tests=(
                "unit/spark/driver/hooks/test_none_options.py::test_none_before_the_format_is_refused_with_the_name_of_the_option",
            ),
        ),
        Entry(
            "The continuous or the real-time trigger",
            "Spark does not support these triggers for Python sinks.",
            'Use a different trigger, such as `trigger(processingTime="1 second")`.',
            places=(
                "spark/driver/hooks/writers.py:_refuse_trigger",
                "spark/writer.py:CONTINUOUS_REFUSAL",
                "spark/writer.py:REAL_TIME_REFUSAL",
                "spark/writer.py:KafkaStreamArrowWriter.commit",
                "spark/writer.py:ExactlyOnceStreamWriter.commit",
            ),
            tests=(
                "spark/test_streaming.py::test_the_continuous_trigger_is_refused_at_the_start",
                "spark/test_streaming.py::test_the_real_time_trigger_is_refused_at_the_start",
                "unit/spark/planning/test_planning.py::test_a_stream_whose_tasks_were_given_no_rows_is_not_committed",
            ),
        ),
        Entry(
            "Output mode `update`",
            "Spark does not write this output mode to a Python sink.",
            "Use `foreachBatch` with `write_batch`, as the message shows.",
            places=(
                "spark/driver/hooks/writers.py:_refuse_update",
                "spark/driver/hooks/writers.py:UPDATE_REFUSAL",
            ),
            tests=(
                "spark/test_streaming.py::test_output_mode_update_is_refused_at_the_start_with_the_way_to_write_it",
            ),
        ),
        Entry(
            "Reading with the sink",
            "The format `pykafka` can only write.",
            'Read with `spark.read.format("kafka")`.',
            places=("spark/planning/datasource.py:KafkaDataSource.schema",),
            tests=("spark/test_refusals.py::test_reading_is_refused_with_a_sentence",),
        ),
        Entry(
            "An argument that is not a session or a batch id",
            ("`register` needs a Spark session, and `write_batch` the batch id of `foreachBatch`."),
            (
                "Pass the session, or the two arguments that Spark passes to the function of "
                "`foreachBatch`."
            ),
            places=(
                "spark/session.py:check_session",
                "spark/driver/write_batch.py:write_batch~batch_id is",
            ),
            tests=(
                "unit/test_arguments.py::test_what_an_argument_does_not_take_is_refused_at_once",
                "spark/test_to_kafka.py::test_the_number_of_a_micro_batch_comes_as_a_number_and_no_other_way",
            ),
        ),
        Entry(
            "A Python without the sink",
            (
                "In the Python of a worker, the sink or a module that it needs is not installed. "
                "Or the minor version of this Python differs from the driver's."
            ),
            (
                "Install the sink in this Python, ship it, or set `PYSPARK_PYTHON` to a Python in "
                "which the sink is installed."
            ),
            places=(
                "spark/driver/hooks/worker_failures.py:explained",
                "spark/driver/hooks/worker_failures.py:_sentence",
                "spark/driver/worker_python.py:_check_python",
            ),
            tests=(
                "unit/spark/driver/hooks/test_worker_failures.py::test_the_sentence_says_what_is_missing_where_and_what_to_do",
                "unit/spark/driver/test_worker_python.py::test_a_python_that_cannot_run_the_sink_is_one_sentence",
            ),
        ),
        Entry(
            "A module that is missing or too old",
            (
                "In the Python of the driver or of a worker, pyspark or a different module that "
                "the sink needs is missing or too old. A cluster brings only some of these "
                "modules, and `--py-files` cannot ship them."
            ),
            (
                "Install the module in that Python, in a version that the message names. Or ship "
                "an environment that contains it with `--archives`. After `register(spark)`, the "
                "error of a worker is a `KafkaException`."
            ),
            places=(
                "spark/worker.py:check_pyspark",
                "spark/worker.py:check_modules",
                "spark/worker.py:check_versions",
            ),
            tests=(
                "unit/spark/test_requirements.py::test_what_needs_pyspark_says_how_to_get_it",
                "unit/spark/test_requirements.py::test_an_old_pyspark_is_named_with_its_version",
                "unit/spark/test_requirements.py::test_a_task_names_an_old_module_with_its_version_and_its_machine",
                "spark/test_places_standalone.py::test_a_worker_that_lacks_a_module_is_told_by_its_name",
            ),
        ),
        Entry(
            "Different builds of the sink",
            (
                "A process of Spark has another version of the sink than the driver, or the same "
                "version from another commit. The message names the Python, the machine and both."
            ),
            (
                "Install the same wheel on the driver and on all executors, or ship it with the "
                "job. Then start the Spark application again."
            ),
            places=("spark/worker.py:new_object",),
            tests=(
                "unit/spark/test_builds.py::test_another_build_is_refused_before_its_classes_are_looked_for",
            ),
        ),
        Entry(
            "Tasks that did not report",
            "Spark committed the write without the results of some tasks, so rows may be missing.",
            "Run the job again.",
            places=("spark/committing/job_commit.py:commit_report",),
            tests=(
                "unit/spark/committing/test_commit.py::test_a_task_that_did_not_report_fails_the_commit",
            ),
        ),
    ),
    "Code of your own": (
        Entry(
            "Code that cannot be imported",
            (
                "The option names a Java class, or a module or an object that does not exist in "
                "this Python."
            ),
            "Install or ship the module. In place of a Java class, use what the message suggests.",
            places=(
                "plugins/loading.py:load",
                "plugins/loading.py:_expected",
                "plugins/loading.py:_instance",
                "config.py:_check_handlers",
                "spark/formats.py:instead_of_serializer",
            ),
            tests=(
                "unit/spark/planning/test_planning.py::test_a_partitioner_written_in_java_is_told_to_be_one",
                "unit/spark/planning/test_planning.py::test_a_name_that_may_be_of_java_or_of_python_is_answered_for_both",
                "unit/spark/planning/test_planning.py::test_a_serializer_is_answered_with_what_takes_its_place",
                "unit/plugins/test_interceptors.py::test_what_is_no_interceptor_is_refused",
                "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
            ),
        ),
        Entry(
            "Code that is not what the option expects",
            "The object cannot be called, or does not have the required methods.",
            "Pass a function or an object as the message describes.",
            places=(
                "plugins/batch_partitioner.py:load_partitioner",
                "plugins/batch_partitioner.py:own_partitions",
                "plugins/interceptors.py:load_interceptors",
                "plugins/interceptors.py:_Adapted.__init__",
                "plugins/serializers.py:load_serializer",
                "network/token_callable.py:_load",
            ),
            tests=(
                "unit/plugins/test_interceptors.py::test_what_is_no_interceptor_is_refused",
                "unit/plugins/test_serializers.py::test_what_is_no_serializer_is_refused",
                "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
            ),
        ),
        Entry(
            "A partitioner with a wrong result",
            "The partitioner did not return one valid partition for each row.",
            (
                "Return an array with one partition for each row. If a partition is null, the "
                "built-in partitioner chooses it."
            ),
            places=("plugins/batch_partitioner.py:chosen_partitions",),
            tests=(
                "unit/test_numbers_in_messages.py::test_a_partition_that_a_partitioner_chose_is_told_as_it_was_chosen",
                "unit/client/test_marks.py::test_a_partitioner_that_chooses_a_mark_is_told_so",
            ),
        ),
        Entry(
            "Code that raises an exception",
            "Your own partitioner, serializer or `close` raised an exception.",
            "Correct the code. The traceback shows its frames.",
            places=(
                "plugins/loading.py:name_user_code",
                "plugins/loading.py:close_plugin",
                "plugins/serializers.py:_named.run",
                "client/chunk_feeder.py:_partitioner_failure",
            ),
            tests=(
                "spark/test_causes.py::test_a_partitioner_that_fails_is_shown_and_named",
                "unit/plugins/test_serializers.py::test_a_serializer_that_fails_is_named_with_class_and_option",
            ),
        ),
        Entry(
            "A key or a value that is not bytes",
            (
                "`send` got a key or a value that is neither bytes nor str, and no serializer is "
                "set."
            ),
            "Pass bytes or str, or set `key.serializer` or `value.serializer`.",
            places=(
                "plugins/serializers.py:as_bytes",
                "plugins/serializers.py:_utf8",
                "client/chunk_feeder.py:_encoding_failure",
            ),
            tests=(
                "unit/plugins/test_serializers.py::test_other_types_are_refused_with_class_and_option",
                "unit/plugins/test_serializers.py::test_text_that_is_not_unicode_is_refused",
            ),
        ),
        Entry(
            "A partitioner that takes too long",
            "Your own partitioner did not return within `delivery.timeout.ms`.",
            "Make it faster, or raise `delivery.timeout.ms`.",
            places=(
                "client/chunk_feeder.py:ChunkFeeder._late",
                "client/chunk_feeder.py:ChunkFeeder._expired",
                "client/chunk_feeder.py:ChunkFeeder._hand_to_thread",
            ),
            tests=(
                "unit/client/test_program_end.py::test_what_the_end_of_a_program_loses_is_told_and_its_exit_code_stays",
                "unit/client/test_slow_partitioner.py::test_a_wait_for_a_partitioner_is_as_long_as_it_may_be",
                "unit/client/test_slow_partitioner.py::test_rows_that_no_thread_can_be_started_for_are_told_so",
            ),
        ),
        Entry(
            "A call that would never end",
            (
                "A callback or a partitioner called a method that may wait for the thread that "
                "runs the callback or the partitioner."
            ),
            "Make the call in another thread, after the callback has returned.",
            places=(
                "client/caller.py:Caller.check_not_in_callback",
                "client/row_producer.py:RowProducer._check_may_wait",
                "client/chunk_feeder.py:ChunkFeeder.check_not_in_partitioner",
            ),
            tests=(
                "unit/client/test_user_code_raises.py::test_a_call_that_waits_for_brokers_is_refused_inside_a_callback",
                "unit/client/test_rows_at_the_end.py::test_a_partitioner_that_flushes_the_producer_that_asks_it_fails_its_rows",
                "unit/client/test_slow_partitioner.py::test_a_partitioner_that_sends_to_its_own_producer_is_refused_from_the_first_row_on",
            ),
        ),
    ),
    "Brokers and topics": (
        Entry(
            "No broker answers",
            (
                "The client can reach none of the addresses in `bootstrap.servers`, or none of the "
                "addresses that the brokers advertise."
            ),
            (
                "Check the addresses, the network and `advertised.listeners` of the brokers. The "
                "message shows the result for each address."
            ),
            places=(
                "errors.py:NO_BROKER",
                "network/request_client.py:RequestFuture.fail",
                "producer/sender.py:Sender._request_failed",
                "commit_client/commit_client.py:CommitClient._connect",
                "commit_client/commit_client.py:CommitClient._until",
            ),
            tests=(
                "spark/test_causes.py::test_a_fault_has_the_same_class_and_words_everywhere",
                "unit/commit_client/test_commit_client.py::test_no_broker_answers_in_time",
                "integration/test_admin.py::test_where_no_broker_answers_all_addresses_are_named",
            ),
        ),
        Entry(
            "A topic or a partition that does not exist",
            (
                "The topic does not exist, or the column `partition` of a row contains a partition "
                "that does not exist."
            ),
            "Create the topic, correct its name, or set `createTopics`.",
            places=(
                "errors.py:NO_TOPIC",
                "client/caller.py:Caller._no_partition",
            ),
            tests=(
                "spark/test_causes.py::test_a_fault_has_the_same_class_and_words_everywhere",
                "spark/test_refusals.py::test_an_unknown_topic_is_named_within_max_block_ms",
            ),
        ),
        Entry(
            "A topic that is not known yet",
            (
                "The client has no metadata of the topic yet. A call inside a callback does not "
                "wait for it."
            ),
            "Call `partitions_for` before the callback runs, or repeat the call later.",
            places=("errors.py:NO_TOPIC_YET",),
            tests=("unit/client/test_calls_in_callbacks.py::test_a_topic_that_is_not_known_yet",),
        ),
        Entry(
            "A topic that brokers refuse",
            "The name is invalid, the topic is internal, or the user lacks a permission (ACL).",
            "Use a different topic, or grant the permissions that the message names.",
            places=(
                "errors.py:words_of_refusal",
                "errors.py:internal_topic_error",
                "errors.py:topic_refusal",
                "admin/topic_requests.py:TopicRequests.configs",
            ),
            tests=(
                "spark/test_causes.py::test_a_driver_that_is_told_its_rights_says_what_a_task_would",
                "integration/test_admin.py::test_a_client_without_rights_is_told_which",
            ),
        ),
        Entry(
            "A topic that cannot be created",
            (
                "The brokers rejected the config in `topic.*`, for example because too few brokers "
                "run for the replication factor. Or the user is not allowed to create topics."
            ),
            "Correct the options, grant CREATE, or create the topic yourself.",
            places=(
                "admin/topic_requests.py:TopicRequests._rejection",
                "admin/topic_requests.py:_creation_error",
            ),
            tests=(
                "integration/test_feature_level.py::test_topics_that_brokers_cannot_create_as_asked_are_refused_before_any_task",
                "integration/test_admin.py::test_what_the_brokers_have_against_a_new_topic_is_one_sentence",
            ),
        ),
        Entry(
            "Rows that brokers refuse or do not acknowledge",
            "Brokers responded with an error, or did not respond within `delivery.timeout.ms`.",
            (
                "Look for the name of the error in the table of error codes below. The table shows "
                "what to do about each code."
            ),
            places=(
                "producer/batch_errors.py:error_of_batch",
                "producer/batch_errors.py:error_of_expired_batch",
                "producer/sequences.py:_error_of_attempt",
                "producer/batch_errors.py:_api_exception",
                "producer/batch_errors.py:abortable",
                "client/future.py:SentRows.completed",
                "client/caller.py:Caller.flush.late",
            ),
            tests=(
                "integration/test_error_table.py::test_what_no_retry_helps_is_an_error_at_once",
                "unit/producer/test_record_errors.py::test_the_first_record_that_a_broker_refused_is_named",
                "unit/producer/test_sender_failures.py::test_a_batch_that_expires_names_the_error_that_it_was_tried_again_for",
                "integration/test_error_table.py::test_a_row_that_gets_no_producer_id_in_time_names_the_error_for_which_it_was_asked_again",
                "unit/client/test_future.py::test_refused_records_fail_with_what_was_said_of_them_and_the_others_with_that",
            ),
        ),
        Entry(
            "No room in `buffer.memory`",
            "Rows arrive faster than the brokers acknowledge them.",
            (
                "Raise `max.block.ms` or `buffer.memory`, or find out why the brokers are slow. "
                "Inside a callback, calls do not wait for memory, so send the rows from a "
                "different thread."
            ),
            places=("client/caller.py:Caller._no_room",),
            tests=(
                "unit/client/test_calls_in_callbacks.py::test_memory_that_is_full",
                "integration/test_faults.py::test_memory_that_a_silent_broker_keeps_full_is_an_error_after_max_block_ms",
            ),
        ),
        Entry(
            "Brokers that are too old",
            "The brokers lack a feature that the options or the columns need.",
            "Change the option that the message names, or update the brokers.",
            places=(
                "producer/feature_level.py:check_zstd",
                "producer/feature_level.py:check_old_format",
                "producer/feature_level.py:check_feature_level",
                "wire/versions.py:NodeApiVersions.latest_usable_version",
                "commit_client/required_versions.py:_too_old",
            ),
            tests=(
                "integration/test_feature_level.py::test_what_a_broker_is_too_old_for_is_refused_before_any_task",
                "unit/spark/test_commit_clients.py::test_a_right_on_a_topic_that_is_missing_is_named",
            ),
        ),
        Entry(
            "No producer id",
            (
                "The user has no permission to write idempotently, or the coordinator rejected the "
                "request."
            ),
            "Grant IDEMPOTENT_WRITE, or set `enable.idempotence` to false.",
            places=("producer/feature_level.py:no_producer_id",),
            tests=(
                "integration/test_feature_level.py::test_what_a_broker_is_too_old_for_is_refused_before_any_task",
            ),
        ),
        Entry(
            "A peer that is not a Kafka broker",
            (
                "The port belongs to a different service, or to a listener with a different "
                "`security.protocol`."
            ),
            "Use the port of a broker's listener that has the `security.protocol` of the client.",
            places=(
                "wire/frames.py:FrameSplitter._check",
                "network/connection.py:Connection._frames",
                "network/connection.py:Connection._version",
                "network/connection.py:Connection._api_versions_answered",
            ),
            tests=(
                "integration/test_network.py::test_a_peer_that_is_no_broker_is_named_with_what_it_said",
                "integration/test_network.py::test_a_listener_that_expects_tls_is_an_error_at_once",
                "unit/network/test_connection.py::test_any_other_refusal_of_versions_is_told",
            ),
        ),
    ),
    "TLS and logins": (
        Entry(
            "Options of TLS and SASL without effect",
            (
                "Options of SASL have no effect with this `security.protocol`, or options of TLS "
                "are set without `security.protocol`."
            ),
            (
                "Set `security.protocol` to the protocol of the brokers' listener, or remove the "
                "options."
            ),
            places=("config.py:_check_security",),
            tests=(
                "unit/test_config.py::test_options_of_sasl_that_are_left_over_are_refused_or_warned_of_once",
                "unit/test_config.py::test_options_of_tls_without_a_protocol_are_refused",
            ),
        ),
        Entry(
            "Credentials that are missing, incomplete or set twice",
            (
                "The client needs credentials, such as a user and a password. They are missing, or "
                "are set in two places."
            ),
            (
                "Set the options that the message names. If two places set credentials, remove one "
                "of them."
            ),
            places=(
                "config.py:_check_secured",
                "network/security.py:Security._credentials",
                "network/security.py:Security._check_not_empty",
                "network/security.py:Security._checked_mechanism",
                "auth/mechanisms.py:PlainExchange.__init__",
                "auth/mechanisms.py:utf8",
                "auth/scram.py:ScramExchange.__init__",
            ),
            tests=(
                "unit/test_config_rules.py::test_what_is_secured_by_half_or_twice_is_refused",
                "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
                "unit/auth/test_scram.py::test_what_brokers_do_not_take_is_refused",
                "unit/auth/test_mechanisms.py::test_what_plain_cannot_send_is_refused_and_not_shown",
            ),
        ),
        Entry(
            "An unknown `sasl.mechanism`",
            "The client or the broker does not offer the mechanism.",
            (
                "Set the option to a mechanism that the message lists. For AWS_MSK_IAM, the "
                "listener must offer OAUTHBEARER."
            ),
            places=(
                "auth/mechanisms.py:checked_mechanism",
                "network/sasl_authenticator.py:SaslAuthenticator.check_handshake",
            ),
            tests=(
                "unit/auth/test_mechanisms.py::test_an_unknown_mechanism_is_refused_with_those_that_are_known",
                "unit/network/test_login.py::test_a_refusal_is_told_with_node_mechanism_and_the_broker_s_words",
            ),
        ),
        Entry(
            "An invalid `sasl.jaas.config`",
            "The value is not a login module entry in Java's format.",
            "Correct the value. The message shows an example.",
            places=(
                "auth/jaas.py:parse_jaas",
                "auth/jaas.py:check_module",
                "auth/jaas.py:_entry",
                "auth/jaas.py:_error",
            ),
            tests=(
                "unit/auth/test_jaas.py::test_what_is_no_entry_is_refused_with_an_example",
                "unit/auth/test_jaas.py::test_a_module_serves_its_mechanisms_whatever_stands_before_its_name",
                "unit/auth/test_jaas.py::test_tokens_that_nobody_signed_are_refused",
            ),
        ),
        Entry(
            "A refused login",
            (
                "The broker rejected the credentials. Or, with SCRAM, the broker did not prove "
                "that it knows them."
            ),
            "Check the user, the password and the mechanism.",
            places=(
                "network/sasl_authenticator.py:SaslAuthenticator.refusal",
                "network/sasl_authenticator.py:SaslAuthenticator.step",
                "auth/scram.py:ScramExchange._failed",
                "auth/oauthbearer.py:OAuthBearerExchange._failed",
                "network/security.py:_TokenLogin.exchange",
                "network/security.py:Security._token",
                "network/security.py:Security._check_identity",
                "network/oauth.py:OAuth._check_user",
                "network/security.py:Security.layer",
                "network/security.py:Security._of_same_user",
                "network/security.py:Security._exchange_again",
                "network/client.py:NetworkClient._connect",
                "network/helper_thread.py:MadeAhead.is_there",
                "network/helper_thread.py:MadeAhead._run",
            ),
            tests=(
                "unit/network/test_helper_thread.py::test_without_a_thread_it_is_an_error_and_the_next_try_works",
                "unit/network/test_login.py::test_a_login_that_never_ends_is_given_up",
                "unit/network/test_security_identity.py::test_a_client_does_not_become_another_user",
                "unit/network/test_security_identity.py::test_a_client_of_an_identity_logs_in_as_that_user_only",
                "unit/network/test_security_identity.py::test_a_client_s_certificate_may_be_renewed_but_not_become_another_user_s",
                "unit/network/test_login.py::test_a_refusal_is_told_with_node_mechanism_and_the_broker_s_words",
            ),
        ),
        Entry(
            "A key store or trust store that cannot be used",
            (
                "The format of the file is not supported, a key or a certificate is missing in it, "
                "or it needs a password."
            ),
            "Convert the file with the command in the message, or set the password.",
            places=(
                "network/ssl_options.py:_store",
                "auth/pem.py:store_kind",
                "auth/pem.py:pem_blocks",
                "auth/pem.py:_block",
                "auth/pem.py:certificates",
                "auth/pem.py:private_key",
                "auth/pkcs12.py:truststore",
                "auth/pkcs12.py:keystore",
                "auth/pkcs12.py:_store",
                "network/option_values.py:OptionValues.content",
                "network/option_values.py:OptionValues.file",
                "network/option_values.py:_check_scheme",
                "network/option_values.py:content",
                "network/tls.py:_load_truststore",
                "network/tls.py:_load_key",
                "network/tls.py:_key_file",
                "network/tls.py:_trust_system_certificates",
            ),
            tests=(
                "unit/network/test_security.py::test_a_private_key_in_place_of_a_path_is_not_shown",
                "unit/network/test_security.py::test_a_file_of_another_file_system_has_to_be_shipped",
                "unit/network/test_security.py::test_a_pipe_is_no_store_and_nobody_waits_for_its_writer",
                "unit/network/test_tls.py::test_what_cannot_be_used_is_refused_by_its_origin",
                "unit/auth/test_pem.py::test_stores_of_java_are_refused_with_the_command_that_converts_them",
                "unit/auth/test_pem.py::test_what_has_no_key_is_refused_by_its_name",
                "unit/auth/test_pem.py::test_what_is_no_store_is_refused_with_what_it_may_be",
                "unit/auth/test_pkcs12.py::test_a_damaged_store_is_told",
                "unit/auth/test_pkcs12.py::test_a_keystore_without_a_key_is_told",
                "unit/auth/test_pkcs12.py::test_of_several_keys_of_a_keystore_none_is_chosen",
                "unit/auth/test_references.py::test_what_gives_nothing_is_an_error_that_shows_no_value",
                "unit/network/test_tls.py::test_a_process_that_may_open_no_more_files_in_memory_uses_one_on_a_disk",
                "unit/network/test_tls.py::test_a_file_that_ssl_cert_file_names_counts_or_is_an_error",
                "unit/network/test_tls.py::test_then_certifi_counts",
            ),
        ),
        Entry(
            "Options of TLS that do not fit",
            (
                "No cipher suite in the list works with the TLS versions in the list, or OpenSSL "
                "does not support them."
            ),
            "Use only versions and suites that the message names, or leave the options unset.",
            places=(
                "network/ssl_options.py:cipher_suites",
                "network/ssl_options.py:_known",
                "network/ssl_options.py:_settings",
                "network/tls.py:_set_ciphers",
            ),
            tests=(
                "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
                "unit/network/test_tls.py::test_no_common_suite_is_told_with_the_options",
            ),
        ),
        Entry(
            "A failed TLS handshake",
            (
                "The client does not trust the broker's certificate, or the broker rejects the "
                "client's certificate."
            ),
            (
                "Set `ssl.truststore.*` or `ssl.keystore.*` as the message says, and check the "
                "listener's port."
            ),
            places=(
                "network/tls.py:TlsLayer._raise",
                "network/tls.py:TlsLayer._why",
                "network/tls.py:TlsLayer._alert_advice",
                "network/tls.py:TlsLayer.__init__",
                "network/nodes.py:NodeStates.check_tls",
                "errors.py:NO_BROKER_BY_TLS",
            ),
            tests=(
                "integration/test_tls_brokers.py::test_a_rejected_certificate_is_the_error_at_once_if_the_other_broker_is_down",
                "integration/test_tls_brokers.py::test_a_rejected_certificate_is_the_error_in_the_end_if_the_other_broker_sends_nothing",
                "unit/network/test_tls.py::test_a_broker_that_refuses_the_client_s_certificate_is_believed",
                "unit/network/test_tls.py::test_what_is_no_host_is_one_clear_error",
            ),
        ),
        Entry(
            "Kerberos without credentials",
            "No ticket or keytab was found, or the options contradict each other.",
            "Run `kinit`, or set `sasl.kerberos.keytab` and `sasl.kerberos.principal`.",
            places=(
                "auth/gssapi.py:kerberos_options",
                "auth/gssapi.py:_of_jaas",
                "auth/gssapi.py:GssapiExchange.step",
                "network/gssapi_context.py:check_kerberos",
                "network/gssapi_context.py:check_keytab",
                "network/gssapi_context.py:gssapi_exchange",
                "network/gssapi_context.py:_Context._checked",
                "network/gssapi_context.py:_expired",
                "network/gssapi_context.py:_failure",
                "network/kerberos.py:_Failures.result",
                "network/kerberos.py:Kerberos._exchange",
                "network/kerberos.py:Kerberos._check_cached_principal",
                "network/kerberos.py:Kerberos._options",
                "network/kerberos.py:Kerberos._checked_cache",
            ),
            tests=(
                "unit/auth/test_gssapi.py::test_what_says_it_by_half_is_refused",
                "unit/auth/test_gssapi.py::test_no_default_keytab_is_looked_for",
                "unit/network/test_gssapi_context.py::test_a_kdc_that_cannot_be_reached_is_tried_again",
                "unit/network/test_kerberos.py::test_a_wrong_key_is_sent_to_the_kdc_more_and_more_rarely_whatever_node_needs_it",
                "unit/auth/test_gssapi.py::test_an_offer_without_auth_alone_is_refused",
                "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
                "integration/test_kerberos.py::test_a_wrong_key_and_an_unknown_principal_are_an_error_at_once",
                "integration/test_kerberos.py::test_no_ticket_or_an_expired_one_is_an_error_at_once",
            ),
        ),
        Entry(
            "OAuth without a token",
            (
                "The options for tokens are incomplete, or the endpoint, the file or your callable "
                "did not return a valid token."
            ),
            "Set the options that the message names, and check the source of the token.",
            places=(
                "auth/oauthbearer.py:bearer_token",
                "auth/oauthbearer.py:checked_extensions",
                "network/http.py:check_url",
                "network/login.py:TokenSource.token",
                "network/login.py:TokenSource._described",
                "network/oauth.py:OAuth._form",
                "network/oauth.py:OAuth._assertion",
                "network/oauth.py:OAuth._settings",
                "network/oauth.py:OAuth._retriever",
                "network/oauth.py:OAuth._check_url",
                "network/oauth.py:OAuth._tls_of_reference",
                "network/oauth.py:OAuth._extensions",
                "auth/assertion.py:parse_template",
                "auth/assertion.py:signing_key",
                "auth/assertion.py:_signature",
            ),
            tests=(
                "unit/network/test_oauth.py::test_nothing_of_a_jaas_text_that_a_reference_gives_is_shown",
                "unit/network/test_oauth.py::test_what_gives_no_token_is_refused_on_the_driver",
                "unit/network/test_oauth.py::test_what_is_no_token_is_refused",
                "unit/auth/test_assertion.py::test_what_is_no_template_is_refused",
                "unit/auth/test_oauthbearer.py::test_what_is_no_token_is_refused_and_not_shown",
            ),
        ),
        Entry(
            "Amazon MSK without credentials",
            (
                "The AWS region or the AWS credentials were not found, or the options contradict "
                "each other."
            ),
            (
                "Set the environment variables of AWS on the driver and on each executor, or "
                "install `botocore` there."
            ),
            places=(
                "auth/aws.py:aws_options",
                "auth/aws.py:_role_keys",
                "auth/aws.py:checked_region",
                "network/aws_credentials.py:AwsTokens.__init__",
                "network/aws_credentials.py:AwsTokens._region",
            ),
            tests=(
                "unit/auth/test_aws.py::test_jaas_names_whose_credentials_are_used",
                "unit/auth/test_aws.py::test_jaas_may_have_the_keys_that_assume_the_role",
                "unit/auth/test_aws.py::test_a_region_becomes_no_other_part_of_the_url",
                "unit/network/test_aws_credentials.py::test_what_is_missing_is_told_before_any_connection",
                "unit/network/test_aws_credentials.py::test_options_that_cannot_be_are_refused",
            ),
        ),
        Entry(
            "No delegation token",
            (
                "Delegation tokens are not enabled on the brokers, or this user may not create "
                "one. Or another process of the driver waits for brokers that do not respond."
            ),
            (
                "Enable delegation tokens on the brokers, use different credentials, or remove "
                "`delegationToken`. If another process waits, check that the driver can reach the "
                "brokers."
            ),
            places=(
                "admin/token_requests.py:_token_error",
                "admin/admin_requests.py:AdminRequests.until_answered",
                "auth/delegation_tokens.py:checked_token_mechanism",
                "spark/planning/token_file.py:locked_file",
                "spark/options.py:_delegation_token_mechanism~needs brokers",
            ),
            tests=(
                "integration/test_delegation_tokens.py::test_brokers_without_tokens_say_which_setting_they_lack",
                "unit/spark/planning/test_task_tokens.py::test_tasks_need_a_listener_with_logins",
                "unit/spark/planning/test_task_tokens.py::test_no_process_waits_for_ever_for_another_one",
                "unit/admin/test_admin_requests.py::test_a_call_that_times_out_names_the_error_for_which_it_was_repeated",
            ),
        ),
    ),
    "Exactly once": (
        Entry(
            "Exactly once on an engine without task numbers",
            "Sail does not pass the numbers of its tasks to Python.",
            "Write without `exactlyOnce`, or run the job on Spark.",
            places=("spark/planning/arrow_schema.py:check_without_task_numbers",),
            tests=("places/test_sail.py::test_exactly_once_is_refused",),
        ),
        Entry(
            "Options of exactly once",
            "An option is missing, invalid, or not allowed for this kind of write.",
            "Set the options that the message names.",
            places=(
                "spark/exactly_once.py:exactly_once",
                "spark/exactly_once.py:_version",
                "spark/exactly_once.py:ExactlyOnce._check_version",
                "spark/exactly_once.py:ExactlyOnce.of_stream",
                "spark/exactly_once.py:ExactlyOnce.of_batch",
                "spark/exactly_once.py:check_exactly_once",
                "spark/options.py:_exactly_once",
                "spark/tasks/task_rows.py:TaskRows._refuse_commit_logs_own",
                "commit/names.py:checked_owner",
                "commit/names.py:check_prefix",
                "commit/names.py:check_app_id",
            ),
            tests=(
                "unit/spark/test_exactly_once.py::test_what_is_wrong_is_refused",
                "unit/spark/test_exactly_once.py::test_a_stream_is_checked_as_a_stream_before_it_starts",
                "unit/spark/test_exactly_once.py::test_a_micro_batch_is_named_by_its_query_or_by_its_number",
                "unit/spark/tasks/test_task_rows.py::test_a_topic_column_may_not_name_the_commit_log",
                "unit/commit/test_names.py::test_what_no_owner_can_have_is_refused",
            ),
        ),
        Entry(
            "A write that does not go with mode `single`",
            (
                "Mode `single` requires rows that `atomic_layout` has partitioned, topics with "
                "CreateTime, and no speculation."
            ),
            "Do what the message says, or use `exactlyOnce=two-phase`.",
            places=(
                "spark/driver/hooks/session_settings.py:refuse_speculation",
                "spark/planning/single_checks.py:check_layout",
                "spark/planning/single_checks.py:check_targets",
                "commit/single.py:_probed",
                "commit/single.py:_flagged",
            ),
            tests=(
                "unit/spark/test_exactly_once.py::test_speculative_copies_do_not_go_with_mode_single",
                "unit/spark/test_exactly_once.py::test_rows_that_were_not_laid_out_are_refused",
                "unit/spark/planning/test_single_checks.py::test_a_topic_with_log_append_time_is_refused",
                "unit/commit/test_single.py::test_a_process_finds_out_first_whether_the_broker_flags_duplicates",
            ),
        ),
        Entry(
            "Two attempts that wrote to one partition",
            (
                "In mode `single`, two attempts of a task, or two producers, wrote to a partition "
                "in the same transaction."
            ),
            "Run the job again, or use `exactlyOnce=two-phase`.",
            places=(
                "commit/single_check.py:step",
                "commit/guards.py:two_writers",
                "commit/guards.py:other_holdings",
                "commit/guards.py:check_ack",
                "commit/single.py:_check_transaction",
                "commit/single.py:_other_transaction",
                "spark/tasks/single_task.py:SingleTask._read_back",
            ),
            tests=(
                "unit/commit/test_single.py::test_what_is_not_as_it_should_be_is_aborted_and_said",
                "unit/commit/test_single_check.py::test_a_task_after_an_attempt_that_has_written_fails",
                "unit/spark/tasks/test_single_task.py::test_a_response_that_tells_of_another_writer_fails_the_task",
            ),
        ),
        Entry(
            "A second save of a micro-batch",
            "Two saves of one micro-batch have the same `txnAppId` and the same topic.",
            (
                "Set another `txnAppId` for the second save. Do not change the first one, because "
                "the last micro-batch would be written again."
            ),
            places=(
                "spark/driver/saves.py:_second_save",
                "spark/driver/saves.py:only_save~two saves",
                "spark/replays.py:is_written~two saves",
            ),
            tests=(
                "unit/spark/driver/test_saves.py::test_a_second_save_of_a_micro_batch_is_refused",
                "unit/spark/test_exactly_once.py::test_a_task_knows_whether_its_micro_batch_was_written",
            ),
        ),
        Entry(
            "A micro-batch whose run of the query is not known",
            (
                "The function of `foreachBatch` called `setJobGroup` before the save, so the sink "
                "cannot read the run id of the query."
            ),
            (
                "Call `write_batch` or `save()` before `setJobGroup`, or call `setJobDescription` "
                "instead. Another `txnAppId` does not help."
            ),
            places=("spark/driver/saves.py:only_save~the run of the query",),
            tests=(
                "unit/spark/driver/test_saves.py::test_a_micro_batch_whose_run_is_unknown_is_refused",
            ),
        ),
        Entry(
            "A micro-batch that is older than the last one",
            (
                "The query began with an older copy of its checkpoint, or two queries share one "
                "checkpoint."
            ),
            (
                "Restore the newest checkpoint. If two queries share it, stop one of them. If the "
                "newest checkpoint is lost, start the query with a new checkpoint, from the "
                "offsets after the last micro-batch that was written. Do not set another "
                "`txnAppId` for the older copy: nothing is recorded for it yet, so the sink would "
                "write the rows of all micro-batches after the older copy again."
            ),
            places=("spark/replays.py:is_written~is older than",),
            tests=(
                "unit/spark/test_exactly_once.py::test_a_task_knows_whether_its_micro_batch_was_written",
            ),
        ),
        Entry(
            "A micro-batch whose rows have changed",
            (
                "After a restart, the source or the query returned a different number of rows for "
                "the same offsets. The rows of the first run are in Kafka."
            ),
            (
                "Make the source and the query return the first rows again, and restart the "
                "query. If they cannot, start it with a new checkpoint, from the offsets after "
                "this micro-batch. (For Spark's Kafka source, they are in the file of the "
                "micro-batch in the folder `offsets` of the old checkpoint.) Then the rows of the "
                "first run stay, and the query loses its state. Another `txnAppId` would write "
                "the rows of this micro-batch again."
            ),
            places=("spark/committing/exactly_once_commit.py:_compare",),
            tests=("unit/spark/committing/test_exactly_once_commit.py::test_a_replay_is_compared",),
        ),
        Entry(
            "A newer run with the same `txnAppId`",
            "A newer run with the same `txnAppId` and topic has begun, so this run was fenced.",
            "Let only one run with the same `txnAppId` write to a topic at a time.",
            places=(
                "commit/steps.py:superseded",
                "commit/steps.py:Failure.exception",
                "commit/read_back.py:check",
            ),
            tests=("unit/commit/test_plan.py::test_a_plan_that_is_overtaken_says_so",),
        ),
        Entry(
            "A job that took too long",
            (
                "The brokers aborted the transactions of the job after "
                "`kafka.transaction.timeout.ms`. None of its rows is visible."
            ),
            (
                "Raise the option up to `transaction.max.timeout.ms` of the brokers, or write less "
                "in one job."
            ),
            places=(
                "spark/tasks/task_transaction.py:_why_it_ended",
                "spark/tasks/task_transaction.py:task_transaction",
                "commit/two_phase.py:_too_late",
                "commit/two_phase.py:_not_open",
                "commit/single.py:_timed_out",
                "commit/two_phase.py:_check",
                "commit/single.py:_check",
            ),
            tests=(
                "unit/spark/test_commit_clients.py::test_a_job_that_took_too_long_names_its_rows_its_time_and_the_option",
                "unit/commit/test_single.py::test_what_is_not_as_it_should_be_is_aborted_and_said",
                "unit/commit/test_two_phase.py::test_time_in_which_the_leader_of_the_log_is_away_counts",
            ),
        ),
        Entry(
            "A step of the commit that failed",
            "Brokers rejected a request, or did not respond in time.",
            "Run the job again. It writes the rows only if they were not committed.",
            places=(
                "commit/outcomes.py:Undecided.exception",
                "commit/steps.py:Received.failure",
                "commit/plan.py:_ask_again",
                "commit/plan.py:_not_planned",
                "commit/two_phase.py:_not_written",
                "commit/two_phase.py:_look_again",
                "commit/two_phase.py:_read",
                "commit/two_phase.py:_not_ended",
                "commit/two_phase_abort.py:_not_done",
                "commit/two_phase_abort.py:_not_seen",
                "commit/two_phase_abort.py:_read",
                "commit/two_phase_claim.py:step",
                "commit/single.py:_not_written",
                "commit/single.py:_read",
                "commit/single.py:_not_ended",
                "commit/single.py:_aborted",
                "commit/resolve.py:step",
            ),
            tests=(
                "unit/commit/test_outcomes.py::test_a_commit_whose_result_is_unknown_says_that_the_next_run_finds_out",
                "unit/commit/test_outcomes.py::test_an_abort_that_failed_says_when_the_brokers_do_it",
                "unit/commit/test_two_phase_claim.py::test_a_task_without_an_id_in_time_fails",
            ),
        ),
        Entry(
            "Rows that are lost after the commit was decided",
            (
                "Brokers aborted transactions after the driver had recorded the decision to commit "
                "them."
            ),
            (
                "If the lost rows are needed, write them again. The message may name only a part "
                "of them: `recover` lists all tasks whose transactions were aborted. All rows of "
                "these tasks are lost. Then run `recover --accept-torn`, so that the job can run "
                "again."
            ),
            places=(
                "commit/outcomes.py:Torn.exception",
                "spark/driver/hooks/worker_failures.py:_torn",
                "commit/resolve.py:in_doubt",
            ),
            tests=(
                "unit/commit/test_outcomes.py::test_lost_rows_that_the_commit_log_cannot_name_are_told",
                "unit/commit/test_plan.py::test_what_nobody_can_tell_is_a_failure_and_no_loss",
                "exactly_once/test_recover.py::test_a_torn_run_is_shown_with_its_exact_list",
            ),
        ),
        Entry(
            "A commit log that cannot be used",
            (
                "The config of the commit log topic is wrong, or a newer version of the sink wrote "
                "the log. The sink ignores records that it did not write: the warning gives the "
                "reason, which begins with `it has` or `its`."
            ),
            "Correct the config of the topic, or use the newer version of the sink.",
            places=(
                "spark/planning/run_plan.py:_check_compacted",
                "commit/plan.py:_newer_format",
                "commit/log_record.py:decode",
                "commit/log_record.py:VersionSet.unpacked",
            ),
            tests=(
                "unit/commit/test_log_record.py::test_a_forged_record_is_ignored_with_a_warning_that_names_its_offset",
                "unit/commit/test_plan.py::test_a_record_of_a_newer_version_of_the_sink_is_refused",
                "unit/spark/planning/test_run_plan.py::test_a_log_that_would_forget_is_refused",
            ),
        ),
        Entry(
            "A version that is too old",
            (
                "The version is lower than all versions that the commit log stores: at least the "
                "10,000 highest versions of the job. The sink cannot know whether it was written."
            ),
            (
                "Find out from the topic whether the rows of this version are there. Only if they "
                "are not, write them with a higher `txnVersion` that no other run uses. If they "
                "are there, a higher `txnVersion` writes them a second time."
            ),
            places=("commit/plan.py:_below_floor",),
            tests=(
                "unit/commit/test_plan.py::test_a_version_below_the_floor_is_refused_with_both_numbers",
            ),
        ),
        Entry(
            "A written version of a topic that was deleted",
            (
                "The commit log says that the version was written to the topic, but the topic did "
                "not exist. It was deleted, with the rows of this version. `createTopics` has "
                "created it again."
            ),
            (
                "To write the rows again, use a new `txnVersion`, or for `write_batch` a new "
                "`txnAppId`. If you run the job again with the same version, it is skipped, and "
                "the topic stays empty."
            ),
            places=("spark/planning/written_version.py:refuse_written_version",),
            tests=(
                "unit/spark/driver/hooks/test_written_versions.py::test_a_written_version_of_a_topic_that_was_deleted_is_not_skipped_in_silence",
            ),
        ),
        Entry(
            "The command `recover`",
            (
                "An argument is missing or invalid, or the commit log does not contain this "
                "`txnAppId`. Or brokers rejected a request or did not respond in time."
            ),
            (
                "Correct the argument. The message lists the values of `txnAppId` in the commit "
                "log. If brokers did not respond, run the command again. If the leader of the "
                "commit log does not return a decision yet, run the command again before the "
                "job's `kafka.transaction.timeout.ms` has passed: then brokers abort the "
                "transactions, and their rows are lost."
            ),
            places=(
                "recover.py:_asked",
                "recover.py:_check_topic",
                "recover.py:_properties",
                "recover.py:_Command.owners",
                "commit/survey.py:_failure",
                "commit/recovery.py:_described_one",
                "commit/recovery.py:_read",
                "commit/recovery.py:_marker_read",
            ),
            tests=(
                "unit/test_recover.py::test_what_cannot_be_is_refused_in_a_sentence",
                "unit/test_recover.py::test_a_file_with_an_unknown_or_a_secret_option_is_refused_without_its_value",
                "exactly_once/test_recover.py::test_other_owners_are_left_out_and_a_wrong_name_is_refused",
                "unit/commit/test_recovery.py::test_a_survey_that_brokers_refuse_is_a_failure",
                "unit/commit/test_recovery.py::test_a_decision_that_the_log_does_not_return_in_time_is_a_failure",
            ),
        ),
    ),
    "Avro and traces": (
        Entry(
            "An Avro schema that is not valid",
            "The schema is not JSON, or breaks a rule of the Avro specification.",
            "Correct the schema at the place that the message names.",
            places=(
                "serde/avro_schema.py:_loaded",
                "serde/avro_schema.py:parse_schema",
                "serde/avro_schema.py:_wrong",
                "spark/planning/given_schemas.py:given_schema",
                "spark/planning/given_schemas.py:invalid_schema",
            ),
            tests=(
                "unit/serde/test_avro_schema.py::test_what_breaks_a_rule_is_refused_with_its_place",
                "unit/serde/test_avro_schema.py::test_text_that_is_no_json_is_refused",
                "unit/spark/planning/test_encodings.py::test_what_is_wrong_is_refused_on_the_driver",
            ),
        ),
        Entry(
            "Columns or rows that do not fit the Avro schema",
            (
                "The type of a column or the names of the fields differ from the schema, or the "
                "value of a row does not fit the type in the schema."
            ),
            (
                "Cast, add, rename or drop the column, correct the value, or change the schema. "
                "`onError` can skip rows that do not fit, or keep them as dead letters."
            ),
            places=(
                "serde/avro_plan.py:_Fitter._record",
                "serde/avro_plan.py:_Fitter._field",
                "serde/avro_plan.py:_misfit",
                "serde/derived_avro.py:_Deriver.derive",
                "serde/derived_avro.py:_Deriver._field",
                "serde/column_types.py:check_distinct_fields",
                "spark/tasks/encoded_rows.py:raise_first",
            ),
            tests=(
                "unit/spark/tasks/test_encoded_rows.py::test_the_first_row_that_cannot_be_encoded_fails_the_task_before_its_batch_is_sent",
                "unit/serde/test_avro_schema.py::test_what_does_not_fit_is_refused_with_path_found_and_expected",
                "unit/serde/test_avro_schema.py::test_what_has_no_schema_is_refused_with_its_path",
            ),
        ),
        Entry(
            "A JSON Schema that is not valid",
            (
                "The schema is not JSON, the target of a `$ref` does not exist, or the file of the "
                "option does not contain a schema."
            ),
            "Correct the schema, or the path of its file.",
            places=(
                "serde/json_schema.py:parse_json_schema",
                "serde/json_schema.py:fit_json",
                "serde/json_schema.py:_Fitter._target",
                "spark/planning/json_format.py:JsonFormat.given",
                "spark/planning/json_format.py:_parsed_referenced",
            ),
            tests=(
                "unit/spark/planning/test_json_format.py::test_a_file_that_may_be_no_schema_is_neither_shown_nor_registered",
                "unit/serde/test_json_schema.py::test_text_that_is_no_schema_is_refused",
                "unit/serde/test_json_schema.py::test_what_does_not_fit_is_refused_with_path_found_and_expected",
                "unit/spark/planning/test_json_format.py::test_a_given_schema_and_an_id_are_compared",
                "unit/spark/planning/test_json_format.py::test_a_referenced_schema_that_is_none_is_named",
            ),
        ),
        Entry(
            "Columns or rows that do not fit the JSON Schema",
            (
                "The type of a column or the names of the fields differ from the schema. Or the "
                "value of a row is null, NaN or infinite, and the schema or JSON does not accept "
                "it."
            ),
            (
                "Cast, add, rename or drop the column, correct the value, or change the schema. "
                "`onError` can skip rows that do not fit, or keep them as dead letters."
            ),
            places=(
                "serde/json_schema.py:_check_types",
                "serde/json_schema.py:_Fitter._object",
                "serde/json_schema.py:_of_some_rows",
                "serde/json_schema.py:_misfit",
            ),
            tests=(
                "unit/serde/test_json_schema.py::test_types_without_a_schema_are_refused_with_their_path",
                "unit/serde/test_json_schema.py::test_what_does_not_fit_is_refused_with_path_found_and_expected",
            ),
        ),
        Entry(
            "A JSON column whose type is not known or has changed",
            (
                "The format `json_sr` is for columns that are already JSON. The sink can derive a "
                "schema only if `to_kafka` made the column, and if it was not changed afterwards."
            ),
            'Call `to_kafka(df, value="json_sr")` right before the write, or set a schema.',
            places=(
                "spark/planning/json_format.py:JsonFormat.__init__",
                "spark/planning/json_format.py:JsonFormat.derived",
                "spark/planning/encodings.py:_check_works_without_registry",
                "serde/json_encoder.py:_is_no_json",
                "spark/tasks/encoded_rows.py:_rows",
            ),
            tests=(
                "unit/spark/planning/test_json_format.py::test_what_cannot_be_written_is_refused",
                "unit/spark/planning/test_json_format.py::test_other_strings_and_bytes_need_a_schema_that_is_not_compared",
                "unit/serde/test_json_encoder.py::test_rows_that_to_json_has_not_made_fail_the_task",
                "unit/spark/tasks/test_encoded_rows.py::test_json_of_two_calls_of_to_kafka_fails_the_task",
            ),
        ),
        Entry(
            "Options of formats that are wrong",
            "An option of a format is invalid, has no effect, or contradicts `to_kafka`.",
            "Set the option as the message says, or remove it.",
            places=(
                "spark/formats.py:format_options",
                "spark/formats.py:_check_record_name",
                "spark/formats.py:_references",
                "spark/formats.py:chosen_formats",
                "spark/formats.py:refuse_converted",
                "spark/planning/encodings.py:_check_effects",
                "spark/planning/given_schemas.py:check_record_name",
            ),
            tests=(
                "unit/spark/planning/test_encodings.py::test_a_text_that_to_kafka_has_made_is_not_avro",
                "unit/spark/planning/test_encodings.py::test_a_text_that_to_kafka_has_made_is_json_only_for_some_types",
                "unit/spark/planning/test_encodings.py::test_what_is_wrong_is_refused_on_the_driver",
            ),
        ),
        Entry(
            "`atomic_layout` with encoded columns",
            (
                "`atomic_layout` would have to choose the partition of a row from a key or another "
                "column that is not encoded yet."
            ),
            (
                "Use a string or binary key without `keyFormat`, or write without `atomic_layout`. "
                "With your own `partitioner.class`, encoded columns are not allowed, so write "
                "without `atomic_layout`. Encoded columns are always allowed if the rows have a "
                "column `partition` that is not nullable."
            ),
            places=("spark/driver/atomic_layout.py:_refuse_encoded_keys",),
            tests=(
                "spark/test_avro.py::test_atomic_layout_refuses_encoded_keys_and_takes_encoded_values",
                "spark/test_schema_registry.py::test_atomic_layout_takes_encoded_keys_if_a_column_has_every_partition",
            ),
        ),
        Entry(
            "Traces that cannot be exported",
            (
                "OpenTelemetry is not installed, the exporter that `OTEL_*` names is not "
                "installed, or `traceparent` is invalid or has no effect."
            ),
            (
                "Install the extra `[otel]` on the driver and on the executors. For OTLP over "
                "gRPC, also install its exporter. Or correct the option."
            ),
            places=(
                "spark/tracing.py:check_installed",
                "spark/tracing.py:_without_exporter",
                "spark/tracing.py:checked_traceparent",
                "spark/options.py:_given_traceparent",
            ),
            tests=(
                "unit/spark/test_tracing.py::test_the_option_is_off_and_its_parent_is_checked",
                "unit/spark/test_tracing.py::test_opentelemetry_is_needed_where_a_write_is_planned_and_not_on_a_connect_client",
                "unit/spark/test_tracing.py::test_an_otlp_exporter_that_is_not_installed_is_named_with_its_package",
                "unit/spark/test_tracing.py::test_an_unknown_exporter_is_named_and_the_others_export",
            ),
        ),
    ),
    "Schema registry": (
        Entry(
            "Options of a schema registry that are wrong",
            "An option is invalid, has no effect, or contradicts another option.",
            "Set the option as the message says, or remove it.",
            places=(
                "schema_registry/settings.py:registry_settings",
                "schema_registry/settings.py:_flag",
                "schema_registry/settings.py:_subject",
                "schema_registry/settings.py:_strategy",
                "schema_registry/settings.py:_seconds",
                "schema_registry/settings.py:_schema_id",
                "schema_registry/settings.py:_is_header_serializer",
                "spark/planning/encodings.py:_check_effects_of_registry",
                "spark/planning/registered_schemas.py:subject_of",
                "spark/planning/registry_questions.py:_check_subjects",
            ),
            tests=(
                "unit/schema_registry/test_settings.py::test_an_invalid_value_is_refused",
                "unit/schema_registry/test_settings.py::test_without_a_url_there_is_no_registry",
                "unit/schema_registry/test_settings.py::test_a_url_option_that_names_no_url_is_refused",
                "unit/spark/planning/test_registered_schemas.py::test_what_is_wrong_is_refused_and_nothing_is_registered",
                "unit/spark/planning/test_registered_schemas.py::test_one_subject_gets_no_different_schemas_of_key_and_value",
            ),
        ),
        Entry(
            "URLs and credentials of a schema registry that cannot be used",
            (
                "The URL or the credentials are incomplete or contradict each other, or a secret "
                "in a reference would be sent unencrypted."
            ),
            "Set only the options of one authentication method, and use https.",
            places=(
                "schema_registry/registry_connection.py:_Connection.client",
                "schema_registry/registry_connection.py:_Connection._url",
                "schema_registry/registry_connection.py:_Connection._inherited_token",
                "schema_registry/registry_connection.py:_Connection._headers",
                "schema_registry/registry_connection.py:_Connection._check_encryption",
                "schema_registry/registry_connection.py:_Connection._source",
                "schema_registry/registry_connection.py:_Connection._basic",
                "schema_registry/registry_connection.py:_Connection._inherited",
                "schema_registry/registry_connection.py:_Connection._header",
                "schema_registry/registry_connection.py:_Connection._bearer",
                "schema_registry/registry_connection.py:_Connection._token_of_endpoint",
            ),
            tests=(
                "unit/schema_registry/test_registry_connection.py::test_what_is_wrong_is_refused_without_a_call",
                "unit/schema_registry/test_registry_connection.py::test_variables_are_not_sent_unencrypted",
            ),
        ),
        Entry(
            "A schema registry that refuses a call",
            (
                "The registry rejected the credentials, the request or the schema, or the URL is "
                "not the URL of a registry."
            ),
            "Do what the message advises for the status or the error code.",
            places=(
                "schema_registry/schema_registry_client.py:_object",
                "schema_registry/schema_registry_client.py:_no_answer",
                "schema_registry/schema_registry_client.py:SchemaRegistryClient._ask_each",
            ),
            tests=(
                "unit/schema_registry/test_schema_registry_client.py::test_an_error_is_raised_at_once_with_its_code_and_advice",
                "unit/schema_registry/test_registry_connection.py::test_wrong_credentials_are_an_error_without_them",
            ),
        ),
        Entry(
            "A schema registry that does not respond",
            "No URL of the registry responded in time, or each responded that it is too busy.",
            (
                "Check `schema.registry.url`, and whether the driver can reach the registry. A "
                "stream that already has the id of its schema continues without the registry."
            ),
            places=("schema_registry/schema_registry_client.py:SchemaRegistryClient._call",),
            tests=(
                "unit/schema_registry/test_schema_registry_client.py::test_a_call_is_tried_again_at_most_three_times",
                "unit/schema_registry/test_schema_registry_client.py::test_each_url_is_asked_before_a_wait",
                "unit/schema_registry/test_schema_registry_client.py::test_a_slow_registry_and_an_endless_body_have_an_end",
            ),
        ),
        Entry(
            "A schema that cannot be chosen",
            (
                "The registry does not contain the schema or has it only in another context, the "
                "format of the schema differs from the option, or the schema has rules, which this "
                "sink does not execute."
            ),
            "Register the schema that the message shows or names, or choose a different one.",
            places=(
                "spark/planning/registered_schemas.py:choose_schema",
                "spark/planning/registered_schemas.py:_no_latest",
                "spark/planning/registered_schemas.py:_not_registered",
                "spark/planning/registered_schemas.py:_accepted",
                "spark/planning/registered_schemas.py:_check_context",
                "spark/planning/registered_schemas.py:_check_rules",
                "schema_registry/schema_registry_client.py:SchemaRegistryClient._add_referenced",
                "spark/planning/registry_questions.py:RegistryQuestion.encoding",
                "spark/planning/registry_questions.py:answers",
            ),
            tests=(
                "unit/spark/planning/test_registered_schemas.py::test_what_is_wrong_is_refused_and_nothing_is_registered",
                "unit/spark/planning/test_registered_schemas.py::test_without_auto_register_schemas_are_only_looked_up",
                "unit/spark/planning/test_registered_schemas.py::test_without_a_latest_version_the_schema_to_register_is_shown",
                "unit/spark/planning/test_registered_schemas.py::test_an_id_chooses_a_schema",
                "unit/spark/planning/test_registered_schemas.py::test_a_schema_that_the_registry_finds_in_another_context_is_refused",
                "unit/schema_registry/test_schema_registry_client.py::test_referenced_schemas_come_before_those_that_use_them",
            ),
        ),
    ),
    "`KafkaProducer`": (
        Entry(
            "A producer that cannot be created",
            "An option is invalid, or a plugin cannot be loaded.",
            "Correct the option that the message names.",
            places=("client/base_producer.py:BaseProducer.__init__",),
            tests=(
                "unit/plugins/test_user_code.py::test_a_producer_whose_parts_cannot_be_made_closes_all_and_says_why",
            ),
        ),
        Entry(
            "A call after close, or in another process",
            "The producer was closed, or the process was forked after the producer was created.",
            "Create a producer in the process that uses it.",
            places=(
                "client/caller.py:Caller.raise_if_closed",
                "client/caller.py:Caller.check_process",
                "client/chunk_feeder.py:ChunkFeeder.begin",
                "client/row_producer.py:RowProducer._check_process",
                "network/request_client.py:OneCaller.run",
                "admin/admin_requests.py:AdminRequests._wait_for",
            ),
            tests=(
                "unit/test_arguments.py::test_nothing_is_read_after_close",
                "unit/client/test_append_under_way.py::test_a_row_that_finds_room_when_its_producer_is_closed_is_refused_and_leaves_nothing",
                "unit/network/test_request_client_one_caller.py::test_every_call_in_a_forked_child_is_refused_but_closing_which_does_nothing",
                "unit/network/test_request_client_one_caller.py::test_every_call_of_a_second_thread_is_refused_while_one_runs",
                "unit/client/test_forked_producer.py::test_futures_of_rows_of_the_parent_are_asked_in_a_child_without_waiting",
            ),
        ),
        Entry(
            "An invalid argument",
            "The method does not accept the type or the value of the argument.",
            "Pass an argument that the message describes.",
            places=(
                "model.py:check_timeout",
                "model.py:_invalid",
                "client/transaction_calls.py:checked_offsets",
                "client/transaction_calls.py:checked_group",
                "client/transaction_calls.py:_values",
                "admin/topic_descriptions.py:NewTopic.__post_init__",
                "admin/token_requests.py:_owner",
                "admin/token_requests.py:_bytes",
            ),
            tests=(
                "unit/test_arguments.py::test_what_an_argument_does_not_take_is_refused_at_once",
                "unit/client/test_group_offsets.py::test_what_is_no_offset_is_refused_before_anything_is_sent",
                "unit/client/test_group_offsets.py::test_what_is_no_group_is_refused_before_anything_is_sent",
            ),
        ),
        Entry(
            "A transaction call at the wrong time",
            (
                "The producer is not transactional, or the call does not fit the state of the "
                "transaction."
            ),
            "Set `transactional.id`, and call the methods in the order of the documentation.",
            places=(
                "kafka_producer.py:KafkaProducer._transactional",
                "producer/transactions/manager.py:TransactionManager.check_in_transaction",
                "producer/transactions/manager.py:TransactionManager._call_to",
                "producer/transactions/requests.py:TransactionalCalls.raise_unfinished",
            ),
            tests=(
                "integration/test_transactions.py::test_transactions_need_an_id_and_idempotence",
                "integration/test_transactions.py::test_records_need_a_transaction",
                "unit/producer/transactions/test_transactions.py::test_records_and_offsets_are_taken_in_a_transaction_only",
            ),
        ),
        Entry(
            "A transaction that failed",
            (
                "A batch or a request of the transaction failed, so the transaction cannot be "
                "committed."
            ),
            "Call `abort_transaction`, and send the records again.",
            places=(
                "producer/transactions/manager.py:TransactionManager._raise_error",
                "producer/transactions/manager.py:TransactionManager.request_failed",
                "producer/transactions/manager.py:_not_sent",
                "producer/transactions/answers.py:Answer.error",
                "producer/transactions/joined.py:JoinedTransaction.request_failed",
                "producer/sender.py:Sender._follow_transaction",
                "client/chunk_feeder.py:_aborted",
                "client/transaction_calls.py:ProducerTransactions._timed_out",
                "client/appender.py:ColumnProducer._spoil_transaction",
            ),
            tests=(
                "integration/test_transactions.py::test_after_a_record_was_refused_the_transaction_is_aborted_and_the_next_one_works",
                "unit/client/test_append_cut_short.py::test_a_table_of_which_a_part_was_appended_spoils_its_transaction",
            ),
        ),
        Entry(
            "A commit that was not carried out",
            (
                "`commit_transaction` timed out or was interrupted, and then the producer was "
                "closed. The commit was not sent to the brokers."
            ),
            "Send the records again, because none of them is visible to `read_committed` readers.",
            places=("producer/transactions/manager.py:aborted_at_close",),
            tests=(
                "unit/client/test_close_after_commit.py::test_a_commit_whose_end_txn_was_not_sent_is_aborted",
                "unit/client/test_close_after_commit.py::test_close_raises_unless_the_transaction_was_committed",
            ),
        ),
        Entry(
            "A commit that was interrupted",
            (
                "`commit_transaction` was interrupted, and the producer could not repeat the "
                "request or abort the transaction."
            ),
            (
                "Create a new producer with the same `transactional.id`. If the message says that "
                "the transaction was not committed, send the records again."
            ),
            places=("client/transaction_calls.py:ProducerTransactions._failure",),
            tests=(
                "unit/client/test_close_after_commit.py::test_close_returns_only_if_the_commit_was_carried_out_wherever_it_was_interrupted",
            ),
        ),
        Entry(
            "A producer that ended before the record was sent",
            "`close` had too little time, or a thread or the process was interrupted.",
            "Call `close` with a longer timeout, and create a new producer.",
            places=(
                "client/base_producer.py:BaseProducer._stop",
                "client/io_thread.py:ProducerThread._run",
                "client/io_thread.py:ProducerThread._end",
                "client/producer_lock.py:ProducerLock._interrupted",
            ),
            tests=(
                "unit/client/test_future.py::test_rows_that_never_came_into_a_batch_fail_with_their_callbacks",
                "unit/client/test_interrupts.py::test_a_caller_that_is_interrupted_loses_nothing_and_leaves_nothing_that_hangs",
                "unit/client/test_rows_at_the_end.py::test_rows_in_batches_are_told_of_the_end_before_those_that_were_sent_after_them",
                "integration/test_kafka_producer.py::test_a_bug_in_the_io_thread_ends_every_wait_with_its_cause",
            ),
        ),
    ),
    "Reading a topic": (
        Entry(
            "An invalid argument of a reader",
            "The option or argument has a value that a reader cannot use.",
            "Pass an argument that the message describes.",
            places=(
                "consumer/reader_config.py:reader_config",
                "consumer/topic_reader.py:TopicReader.read",
                "consumer/topic_reader.py:TopicReader._partitions",
                "consumer/topic_reader.py:TopicReader._offsets",
                "consumer/reader_config.py:partition_numbers",
                "consumer/reader_config.py:_partition_number",
                "consumer/reader_config.py:checked_offsets",
                "consumer/topic_reader.py:TopicReader._check_open",
            ),
            tests=(
                "unit/consumer/test_reader_config.py::test_what_cannot_be_used_is_refused_by_its_name",
                "unit/consumer/test_topic_reader.py::test_what_is_no_offset_is_refused_at_once",
                "unit/consumer/test_topic_reader.py::test_offsets_of_partitions_that_are_not_read_are_refused",
                "unit/test_arguments.py::test_nothing_is_read_after_close",
                "integration/test_topic_reader.py::test_arguments_of_no_meaning_are_refused_at_once",
            ),
        ),
        Entry(
            "Records that cannot be read",
            (
                "The records were deleted or are corrupt, the user is not allowed to read them, or "
                "no broker responds."
            ),
            "Begin at a different offset, or do what the message suggests.",
            places=(
                "consumer/list_offsets.py:partition_error",
                "consumer/reading.py:Reading.reset",
                "consumer/reading.py:Reading._check_topic_id",
                "consumer/reading.py:_with_position",
                "consumer/topic_reader.py:TopicReader._raise_timeout",
                "errors.py:corrupt",
            ),
            tests=(
                "unit/consumer/test_reading.py::test_a_position_that_was_deleted_moves_on_only_for_a_reading_from_the_earliest",
                "unit/consumer/test_reading.py::test_a_topic_that_was_created_again_is_not_read_on_at_the_offsets_of_the_old_one",
                "unit/records/test_default_record.py::test_garbage_is_batches_or_a_corrupt_record_exception",
                "integration/test_topic_reader.py::test_brokers_that_never_answer_are_a_timeout_that_names_them",
            ),
        ),
    ),
}

BROKEN_PROTOCOL: Final = "a broker that breaks the protocol"
# Errors that no user can cause, by the beginning of the place, and what they are instead. Errors
# whose message says that they are a bug need not be here.
INTERNAL: Final[Mapping[str, str]] = {
    "records/": 'a reason after the words "records cannot be read"',
    "wire/frames.py:response_correlation_id": BROKEN_PROTOCOL,
    "wire/frames.py:decode_response": BROKEN_PROTOCOL,
    "wire/primitives.py:": BROKEN_PROTOCOL,
    "wire/message_codecs.py:": "a bug",
    "admin/token_requests.py:TokenRequests._about_tokens.answer": BROKEN_PROTOCOL,
    "network/connection.py:Connection.send": "a bug",
    "network/connection.py:Connection.received": BROKEN_PROTOCOL,
    "network/connection.py:Connection._handle": "a bug",
    "network/connection.py:Connection._token_came": "the reason why a request is sent again",
    "network/sasl_authenticator.py:SaslAuthenticator._open_exchange": BROKEN_PROTOCOL,
    "network/request_client.py:RequestFuture.response": "a bug",
    "network/tls_selector.py:": "a bug",
    "auth/x500_names.py:certificate_subject": "a bug: OpenSSL has loaded the certificate before",
    "spark/planning/kept_schemas.py:_of_parts": "a damaged file, which counts as none",
    "spark/planning/kept_schemas.py:_referenced_schema": "a damaged file, which counts as none",
    "producer/producer_batch.py:": "a bug",
    "producer/sender.py:Sender.join": "a bug",
    "producer/sender.py:Sender.end_joined": "a bug",
    "producer/sender.py:Sender._check_idle": "a bug",
    "producer/transactions/manager.py:TransactionManager._answer_to": "a bug",
    "commit/states.py:": "a bug",
    "spark/committing/two_phase_commit.py:_abort_once": "a reason inside a line of stderr",
    "task_producer.py:": "a bug",
}
