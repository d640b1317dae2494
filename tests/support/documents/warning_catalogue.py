"""The catalogue of warnings, and of lines on stderr, that say that something is wrong.

Each entry is as in `error_catalogue`. `errors_page` puts them into docs/reference/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from support.documents.error_catalogue import Entry

WARNINGS: Final[tuple[Entry, ...]] = (
    Entry(
        "A report that could not be written",
        (
            "The sink cannot write the file `reportPath` on the driver, or cannot store the report "
            "for `last_reports`."
        ),
        (
            "If the job succeeded, its rows are in Kafka. Do not run it again for the report, "
            "because that could write the rows a second time. If the job failed, the error of the "
            "job says which rows are in Kafka. Correct the path or its file permissions before the "
            "next run. Unless `quiet` is set, a second line on stderr gives the number of rows."
        ),
        places=("spark/committing/job_commit.py:publish",),
        tests=(
            "unit/spark/committing/test_commit.py::test_a_report_that_cannot_be_written_is_said_and_does_not_fail_the_job",
            "unit/spark/committing/test_commit.py::test_a_report_over_a_folder_leaves_nothing_behind",
        ),
    ),
    Entry(
        "An exactly-once write that failed",
        (
            "The job or the micro-batch failed. The line says whether its rows are committed, and "
            "how long `read_committed` consumers may have to wait."
        ),
        (
            "Run the job again with the same `txnAppId` and `txnVersion`: if the version was "
            "committed, the sink skips it. Without `txnVersion`, run the job again only if the "
            "line says that no row is visible. To see which transactions are open or committed, "
            "run the command of [Recover an exactly-once job](../how-to/recover.md)."
        ),
        places=(
            "spark/committing/exactly_once_commit.py:abort_micro_batch",
            "spark/committing/exactly_once_commit.py:_if_replay",
            "spark/committing/single_commit.py:_abort_run~failed after",
            "spark/committing/single_commit.py:_why_fenced",
            "spark/committing/two_phase_commit.py:_aborted",
            "spark/committing/two_phase_commit.py:_Tries.go_on",
            "spark/committing/two_phase_commit.py:_Tries.failed~has to be committed",
            "spark/committing/two_phase_commit.py:_fenced~the write of",
            "spark/committing/two_phase_commit.py:_say_decided",
            "spark/committing/two_phase_commit.py:_forward",
            "commit/outcomes.py:not_aborted_now",
            "commit/outcomes.py:not_known",
        ),
        tests=(
            "unit/spark/committing/test_exactly_once_commit.py::test_an_abort_without_a_plan_says_until_when_a_transaction_may_be_open",
            "unit/spark/committing/test_exactly_once_commit.py::test_an_abort_says_what_came_of_it_and_raises_nothing",
            "unit/spark/committing/test_exactly_once_commit.py::test_the_end_of_a_transaction_without_rows_is_told_if_it_fails",
            "unit/spark/committing/test_two_phase_commit.py::test_an_abort_of_a_decided_run_prints_a_line_before_it_commits_the_rest",
            "unit/spark/committing/test_two_phase_commit.py::test_an_abort_that_never_gets_a_response_says_that_the_run_may_be_decided",
        ),
    ),
    Entry(
        "A stream whose rows may be written twice",
        (
            "The commit log does not contain the earlier micro-batches of this query. Either the "
            "query has a new checkpoint, or an option that the message names has changed, or all "
            "earlier micro-batches had no rows. Such micro-batches are not recorded. Or the "
            "earlier micro-batches were written without `exactlyOnce`, by another sink, or with "
            "Spark Connect."
        ),
        (
            "If you started the stream with a new checkpoint on purpose, or if the earlier "
            "micro-batches had no rows, do nothing. If you have just turned on `exactlyOnce`, do "
            "nothing either: only the first micro-batch with it may be written twice. Otherwise "
            "stop the stream, and set the checkpoint and the options as before."
        ),
        places=("spark/replays.py:warning_of_new_query",),
        tests=(
            "unit/spark/committing/test_exactly_once_commit.py::test_a_stream_whose_rows_may_come_twice_is_warned_of",
        ),
    ),
    Entry(
        "A commit log that may forget",
        (
            "The topic of the commit log was deleted or created again, its records were deleted, "
            "it contains records that the sink did not write, it has only one replica, or the "
            "sink cannot read its config."
        ),
        (
            "Set `cleanup.policy=compact` on the topic, and let only the sink write to it. Give it "
            "three replicas. Grant DESCRIBE_CONFIGS on it. If records were deleted, find out which "
            "versions of `txnAppId` were written before you run an old version again."
        ),
        places=(
            "spark/planning/run_plan.py:_created_with_less",
            "spark/planning/run_plan.py:_check_compacted",
            "spark/planning/run_plan.py:_check_replicas",
            "commit/log_record.py:LogReader._take",
            "commit_client/commit_log.py:CommitLog._check_topic_id",
            "commit_client/commit_log.py:CommitLog._read_to_end",
        ),
        tests=(
            "unit/spark/planning/test_run_plan.py::test_a_log_whose_settings_cannot_be_read_is_used_with_a_warning",
            "unit/spark/planning/test_run_plan.py::test_a_log_whose_settings_are_refused_is_created_without_them",
            "unit/spark/planning/test_run_plan.py::test_a_log_of_one_replica_is_warned_of_on_a_cluster_that_could_have_more",
            "unit/commit/test_log_record.py::test_a_forged_record_is_ignored_with_a_warning_that_names_its_offset",
            "unit/commit_client/test_commit_client.py::test_a_log_that_was_created_again_is_known_by_its_topic_id",
            "unit/commit_client/test_commit_client.py::test_a_log_whose_first_records_were_deleted_is_read_from_its_start_with_a_warning",
        ),
    ),
    Entry(
        "Rows that brokers may delete soon",
        "The timestamps of the rows are older than the topic's `retention.ms` allows.",
        (
            "Raise `retention.ms` of the topic, or set its `message.timestamp.type` to "
            "`LogAppendTime`. If the timestamps are wrong, correct the column `timestamp`."
        ),
        places=("spark/report.py:ExpiredRowsReport.summary",),
        tests=(
            "unit/spark/committing/test_commit.py::test_rows_older_than_the_retention_are_added_up_and_said_once",
            "unit/spark/tasks/test_retention.py::test_the_line_names_the_topics_with_most_of_them",
        ),
    ),
    Entry(
        "A topic or columns that are not as expected",
        (
            "The config of the topic differs from `topic.*` or cannot be read, or the DataFrame "
            "has columns that the sink does not send."
        ),
        (
            "Change the topic with Kafka's tools, or remove the options. Rename the columns, drop "
            "them, or put them into the value."
        ),
        places=(
            "spark/planning/preflight.py:warn_of_differences",
            "spark/planning/single_checks.py:check_targets",
            "spark/planning/schema.py:warn_of_unsent_columns",
        ),
        tests=(
            "unit/spark/planning/test_long_lists.py::test_of_many_settings_that_an_existing_topic_does_not_have_ten_are_named",
            "unit/spark/planning/test_single_checks.py::test_a_topic_whose_settings_cannot_be_read_is_named_in_a_warning",
            "unit/spark/planning/test_planning.py::test_columns_that_are_not_sent_are_named_once_for_a_schema",
        ),
    ),
    Entry(
        "An older schema that is still used",
        "The sink cannot query the schema registry, or the newest schema does not fit the column.",
        (
            "Correct the problem that the end of the message describes. Later writes then use the "
            "newest schema."
        ),
        places=("spark/planning/registry_questions.py:_Connection._kept_on",),
        tests=(
            "unit/spark/planning/test_registered_schemas.py::test_a_stream_survives_a_registry_that_is_away",
        ),
    ),
    Entry(
        "A delegation token that could not be expired or renewed",
        (
            "The brokers did not respond, or rejected the request or the token. Or the driver "
            "cannot write a file."
        ),
        (
            "If the token could not be expired, it stays valid until its expiry time. To expire it "
            "now, run `kafka-delegation-tokens.sh --describe`, find the HMAC of the token id in "
            "the output, and pass it to `kafka-delegation-tokens.sh --expire`. If the renewal "
            "failed, check that the driver can reach the brokers: the sink retries until the token "
            "expires. If the token of a job is not renewed, the job fails if it takes longer than "
            "the token is valid. If a file cannot be written, make the folder `spark.local.dir` of "
            "the driver writable."
        ),
        places=(
            "spark/committing/job_token.py:JobToken.keep",
            "spark/committing/job_token.py:JobToken._say_failure",
            "spark/driver/hooks/delegation_token_renewal.py:_run",
            "spark/planning/task_tokens.py:checked_with_shared_token",
            "spark/planning/task_tokens.py:_unless_expired",
            "spark/planning/task_tokens.py:_note_job",
            "spark/planning/token_file.py:_warn_of_file",
        ),
        tests=(
            "unit/spark/planning/test_task_tokens.py::test_a_job_goes_on_where_its_credentials_cannot_be_kept",
            "unit/spark/planning/test_task_tokens.py::test_an_end_that_fails_is_told_and_fails_no_job",
            "unit/spark/driver/hooks/test_delegation_token_renewal.py::test_a_renewal_that_fails_is_tried_again_and_told",
            "unit/spark/planning/test_task_tokens.py::test_a_token_that_brokers_refuse_is_replaced_unless_it_is_new",
            "unit/spark/planning/test_task_tokens.py::test_while_a_token_cannot_be_renewed_it_is_used_until_it_expires",
            "unit/spark/planning/test_task_tokens.py::test_a_job_whose_token_is_not_noted_says_so",
            "unit/spark/planning/test_task_tokens.py::test_a_link_is_not_followed_and_the_process_goes_on_without_a_file",
        ),
    ),
    Entry(
        "A trace that is not exported",
        (
            "No exporter of OpenTelemetry is installed, the exporter cannot start, or the "
            "collector does not accept the spans. The write continues without spans."
        ),
        (
            "On the driver and on the executors, install the package that the message names, and "
            "check `OTEL_EXPORTER_OTLP_ENDPOINT` and the other variables `OTEL_*`."
        ),
        places=("spark/tracing.py:_warn", "spark/tracing.py:_warn_of"),
        tests=(
            "unit/spark/test_tracing.py::test_an_unknown_exporter_is_named_and_the_others_export",
            "unit/spark/test_tracing.py::test_an_otlp_exporter_that_is_not_installed_is_named_with_its_package",
            "unit/spark/test_tracing.py::test_beside_an_exporter_that_cannot_start_the_others_export",
        ),
    ),
    Entry(
        "An option that is ignored",
        (
            "The option has no effect here, a different option limits its value, or its name is "
            "unknown and `unknownOptions` is `warn`."
        ),
        "Remove the option, or correct its name. The write continues without it.",
        places=(
            "config.py:check_names",
            "config.py:_check_security",
            "config.py:_settle_backoffs",
            "network/oauth.py:OAuth._extensions",
            "network/oauth.py:_endpoint_config",
            "network/ssl_options.py:_store",
            "plugins/interceptors.py:_each_once",
            "spark/options.py:_sink_options",
        ),
        tests=(
            "unit/plugins/test_interceptors.py::test_a_name_or_a_class_that_stands_twice_is_made_once_as_in_java",
            "unit/test_config.py::test_what_has_no_effect_is_said_once",
            "unit/test_config.py::test_options_of_sasl_that_are_left_over_are_refused_or_warned_of_once",
            "unit/test_config.py::test_options_of_tls_that_are_left_over_are_warned_of_once_as_java_ignores_them",
            "unit/test_config.py::test_a_pause_over_its_maximum_is_said",
            "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
            "unit/spark/planning/test_long_lists.py::test_of_many_options_of_a_source_ten_are_named",
        ),
    ),
    Entry(
        "Secrets or rows that others may read",
        (
            "A connection is not encrypted, the server's name is not checked, versions of TLS are "
            "enabled that are old and never used, or `register` cannot make the session mask "
            "secrets."
        ),
        (
            "Use `SASL_SSL` and `https`, and do not change "
            "`ssl.endpoint.identification.algorithm`. If the message names a setting of Spark, set "
            "it for the whole cluster."
        ),
        places=(
            "network/oauth.py:OAuth._checked_endpoint",
            "network/security.py:Security.__init__",
            "network/ssl_options.py:_settings",
            "schema_registry/registry_connection.py:_Connection._check_encryption",
            "schema_registry/registry_connection.py:_Connection._token_of_endpoint",
            "spark/driver/register.py:mask_secrets",
        ),
        tests=(
            "unit/network/test_oauth.py::test_credentials_that_travel_in_clear_are_warned_of",
            "unit/network/test_security_options.py::test_an_option_is_accepted_refused_or_warned_of",
            "unit/schema_registry/test_registry_connection.py::test_variables_are_not_sent_unencrypted",
            "unit/spark/driver/test_redaction.py::test_a_setting_that_is_refused_is_warned_of",
        ),
    ),
    Entry(
        "Brokers or a token server that do not answer yet",
        (
            "No broker has responded for some seconds, a broker rejected a batch, or a token "
            "server is slow or returned no token."
        ),
        (
            "If the job continues, do nothing: the sink retries within its time limits. Otherwise, "
            "check the address, the protocol and the error that the message names."
        ),
        places=(
            "network/client.py:NetworkClient._warn_of_no_response",
            "network/login.py:TokenSource._fetch_one",
            "network/login.py:TokenSource._replace_slow_thread",
            "producer/completion.py:BatchCompletion._retry",
        ),
        tests=(
            "unit/network/test_client_trouble.py::test_who_is_tried_in_vain_is_told_once_in_a_process_after_five_seconds",
            "unit/network/test_token_source.py::test_a_call_that_does_not_return_is_made_again_in_another_thread",
            "unit/network/test_token_source.py::test_while_a_refresh_fails_the_old_token_serves_until_it_ends",
            "unit/producer/test_sender_failures.py::test_the_first_retry_of_each_kind_is_a_warning",
        ),
    ),
    Entry(
        "Records of KafkaProducer that are lost",
        (
            "Before the records were acknowledged, the program ended or was interrupted, or the "
            "producer was garbage-collected."
        ),
        "Use the producer in a `with` block, or call `close()`. Send the lost records again.",
        places=(
            "client/base_producer.py:BaseProducer._log_failure",
            "client/base_producer.py:BaseProducer._log_lost",
            "client/base_producer.py:BaseProducer._stop",
            "client/io_thread.py:ProducerThread._end",
            "client/unclosed.py:warn_unclosed",
            "client/unclosed.py:say_lost",
        ),
        tests=(
            "unit/client/test_program_end.py::test_what_the_end_of_a_program_loses_is_told_and_its_exit_code_stays",
            "unit/client/test_max_block.py::test_ctrl_c_in_a_with_block_takes_five_seconds_at_most",
            "unit/client/test_user_code_raises.py::test_close_does_not_wait_for_a_callback_that_does_not_return",
            "integration/test_kafka_producer.py::test_a_producer_that_nobody_closes_warns_and_ends_its_thread",
            "unit/client/test_producer_unclosed.py::test_the_open_transaction_of_a_collected_producer_is_aborted_and_that_is_said",
        ),
    ),
    Entry(
        "Your own code that failed",
        "A callback, a partitioner, a serializer or an interceptor raised an exception.",
        "Correct the code. The log contains its Python traceback.",
        places=(
            "client/chunk_feeder.py:ChunkFeeder._append_rows",
            "client/chunk_feeder.py:ChunkFeeder._partition",
            "client/chunk_feeder.py:ChunkFeeder._choose_and_append",
            "plugins/interceptors.py:ProducerInterceptors.on_send",
            "plugins/loading.py:close_plugin",
            "plugins/user_calls.py:_log",
        ),
        tests=(
            "unit/client/test_slow_partitioner.py::test_rows_that_fail_are_logged_with_neither_lock_nor_turn",
            "unit/client/test_user_code_raises.py::test_what_a_callback_of_a_row_raises_is_logged_and_ends_nothing",
            "unit/plugins/test_interceptors.py::test_one_that_raises_or_gives_no_record_is_logged_and_skipped",
        ),
    ),
    Entry(
        "A stream listener that is not added or removed",
        "The server of Spark Connect could not be reached.",
        "When the server can be reached, repeat the call that adds or removes the listener.",
        places=(
            "spark/driver/listener_bus.py:ListenerBus.append",
            "spark/driver/listener_bus.py:ListenerBus.remove",
        ),
        tests=(
            "unit/spark/driver/test_listener_bus.py::test_a_server_that_cannot_be_reached_is_a_warning",
        ),
    ),
    Entry(
        "Records that were deleted before TopicReader read them",
        "The topic keeps its records for less time than the reader needs.",
        "Read sooner, or raise `retention.ms` of the topic.",
        places=("consumer/reading.py:Reading.reset",),
        tests=(
            "integration/test_topic_reader.py::test_records_that_were_deleted_are_an_error_or_for_earliest_a_warning",
        ),
    ),
)

_PASSED_ON: Final = "it passes a message on"
# Places that tell something, by the beginning of the place, and why they are in no entry.
UNLISTED: Final[Mapping[str, str]] = {
    "client/chunk_feeder.py:_log_error": _PASSED_ON,
    "client/io_thread.py:ProducerThread._act": _PASSED_ON,
    "client/io_thread.py:ProducerThread._run": "a bug",
    "logs.py:": _PASSED_ON,
    "network/client.py:NetworkClient._process": "the reason is the message of an error",
    "recover.py:": "the output of a command",
    "spark/committing/exactly_once_commit.py:commit_micro_batch": _PASSED_ON,
    "spark/committing/exactly_once_commit.py:end_unused": _PASSED_ON,
    "spark/committing/exactly_once_commit.py:_abort": _PASSED_ON,
    "spark/committing/single_commit.py:abort_run": _PASSED_ON,
    "spark/committing/job_commit.py:_say_summary": _PASSED_ON,
    "spark/driver/stream_listener.py:_print": "a micro-batch that was written, or its error",
    "spark/options.py:_complain": "the message of an error, with unknownOptions=warn",
    "spark/planning/run_plan.py:_warn": _PASSED_ON,
}
