"""SchemaRegistryClient: the calls that a producer makes to a schema registry, over HTTP.

The API is that of Confluent's Schema Registry, which other registries offer too. A call sends its
request to one URL after the other until one of them returns a result or a final error. If all URLs
are busy or cannot be reached, the client waits and tries all of them again. The number of retries
and the time are limited.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.auth.mechanisms import printable
from spark_kafka_sink.auth.token_endpoint import secrets_in
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.errors import DataException, RestClientException
from spark_kafka_sink.network.http import (
    HttpAnswer,
    HttpException,
    HttpLimits,
    is_encrypted,
    path_encoded,
    send,
)
from spark_kafka_sink.schema_registry.schemas import (
    AVRO,
    RegisteredSchema,
    Schema,
    SchemaReference,
    context_of,
    context_of_url,
    in_context_of,
)

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import SSLContext

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_RETRIES: Final = 3
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 20.0
# One attempt takes at most the sum of these times. Schemas with many fields are over a megabyte.
_LIMITS: Final = HttpLimits(connect_s=3, read_s=7, most_bytes=16 << 20)
# All attempts of a call end within this number of seconds. The time to resolve names and to get a
# token comes on top.
_MOST_S: Final = 60.0
_RETRIABLE: Final = frozenset({408, 429, 500, 502, 503, 504})
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_LARGEST_ID: Final = 2**31 - 1
_MOST_REFERENCED: Final = 100
CERTIFICATE_HINT: Final = (
    "set schema.registry.ssl.truststore.location or schema.registry.ssl.truststore.certificates to "
    "the certificate of its CA, unless the system trusts that CA"
)


class RegistryUrl(NamedTuple):
    """A base URL of a registry.

    address: the URL without a user and a password. shown: the URL as messages print it.
    """

    address: str
    shown: str


class _Reason(NamedTuple):
    """Why a URL returned no answer.

    said: a phrase for messages. is_final: whether a retry would fail in the same way. needed: what
    was not received, an answer of the registry or a token.
    """

    said: str
    is_final: bool = False
    needed: str = "answer"


class SchemaRegistryClient:
    """Makes calls to a schema registry.

    urls: the URLs of one registry. headers: a function that takes the address of a URL and returns
    the headers that authenticate the client there; it may raise TokenException. context: the TLS
    context for ``https``. limits: the limits of one attempt. clock, sleep, random: tests
    replace them. Each call raises RestClientException if it fails.
    """

    def __init__(
        self,
        urls: Sequence[RegistryUrl],
        headers: Callable[[str], Mapping[str, str]],
        context: SSLContext | None = None,
        *,
        limits: HttpLimits = _LIMITS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Random | None = None,
    ) -> None:
        self._urls = tuple(urls)
        self._headers = headers
        self._context = context
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._random = random or Random()  # noqa: S311 - jitter, not secrets
        # A version never changes, so each is requested only once.
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}
        # Messages do not show these texts, even if a response of the registry has them.
        self._secrets: frozenset[str] = frozenset()

    @property
    def contexts(self) -> frozenset[str]:
        """The contexts that the URLs name, empty for a URL without one."""
        return frozenset(context_of_url(each.address) for each in self._urls)

    # -- calls ------------------------------------------------------------------------------------

    def register(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema:
        """Register a schema as a new version of a subject, and return it with its id.

        If a version of the subject already has this schema, the registry returns that version's id.
        """
        path = f"/subjects/{path_encoded(subject)}/versions{_normalized(normalize)}"
        what = f"register a schema in subject {subject!r}"
        try:
            found = self._call("POST", path, what, _request_of(schema))
        except RestClientException as error:
            known = self._after_conflict(error, subject, schema, normalize=normalize)
            if known is None:
                raise
            return known
        # Newer registries also return the rules of the version, which may come from an earlier
        # version.
        has_rules = _has_rules(found)
        schema_id, guid = _id(found, what), _guid(found)
        return RegisteredSchema(schema, schema_id, subject, has_rules=has_rules, guid=guid)

    def _after_conflict(
        self, error: RestClientException, subject: str, schema: Schema, *, normalize: bool
    ) -> RegisteredSchema | None:
        """After a failed registration, return the version that has the schema, None if none has it.

        Apicurio Registry 2 returns 409 if another client registers the first version of the
        subject at the same time, even if both register the same schema.
        """
        if error.status != _CONFLICT:
            return None
        with suppress(RestClientException):
            return self.lookup(subject, schema, normalize=normalize)
        return None

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema | None:
        """Return the version of a subject that has this schema, None if no version has it."""
        path = f"/subjects/{path_encoded(subject)}{_normalized(normalize)}"
        what = f"look up a schema in subject {subject!r}"
        return self._found("POST", path, what, _request_of(schema))

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the latest version of a subject, None if there is no such subject."""
        path = f"/subjects/{path_encoded(subject)}/versions/latest"
        return self._found("GET", path, f"get the latest version of subject {subject!r}")

    def version(self, subject: str, version: int) -> RegisteredSchema | None:
        """Return a version of a subject, None if the subject has no such version."""
        known = self._versions.get((subject, version))
        if known is not None:
            return known
        path = f"/subjects/{path_encoded(subject)}/versions/{version}"
        found = self._found("GET", path, f"get version {version} of subject {subject!r}")
        if found is not None:
            self._versions[subject, version] = found
        return found

    def schema_of_id(self, schema_id: int, subject: str = "") -> RegisteredSchema | None:
        """Return the schema with an id, None if no schema has this id.

        subject: any subject of the context that has the id, or empty for the default context.
        """
        what = f"get the schema with id {schema_id}"
        path = f"/schemas/ids/{schema_id}"
        if context_of(subject):
            what += f" in the context of subject {subject!r}"
            path += f"?subject={path_encoded(subject)}"
        return self._found("GET", path, what, schema_id=schema_id)

    def referenced(self, schema: Schema, subject: str = "") -> dict[SchemaReference, Schema]:
        """Return all schemas that a schema references, directly or through other schemas.

        Each schema comes after the schemas that it references itself. If references with different
        names point to the same schema, the result has it once per name. If several references have
        the same name, only the first one counts, as in Confluent's clients for Java. subject: a
        subject that has the schema. As in these clients, a reference without a context points into
        the context of `subject`. Raise DataException if the registry lacks one of the schemas, or
        if there are more than a hundred.
        """
        found: dict[SchemaReference, Schema] = {}
        self._add_referenced(schema, subject, found, set(), set())
        return found

    def _add_referenced(
        self,
        schema: Schema,
        subject: str,
        found: dict[SchemaReference, Schema],
        names: set[str],
        places: set[tuple[str, int]],
    ) -> None:
        for each in schema.references:
            if each.name in names:
                continue
            reference = replace(each, subject=in_context_of(subject, each.subject))
            place, where = (reference.subject, reference.version), str(reference)
            names.add(reference.name)
            if len(names) > _MOST_REFERENCED:
                message = (
                    f"the schema references more than {_MOST_REFERENCED} schemas: {where} is one "
                    "too many"
                )
                raise DataException(message)
            there = self.version(*place)
            if there is None:
                message = (
                    f"the schema references {reference.name}, but the schema registry has no "
                    f"{where}: register it"
                )
                raise DataException(message)
            if place not in places:
                places.add(place)
                self._add_referenced(there.schema, reference.subject, found, names, places)
            found[reference] = there.schema

    # -- requests ---------------------------------------------------------------------------------

    def _found(
        self,
        method: str,
        path: str,
        what: str,
        request: Mapping[str, Any] | None = None,
        schema_id: int | None = None,
    ) -> RegisteredSchema | None:
        try:
            answer = self._call(method, path, what, request)
        except RestClientException as error:
            # A registry has its own error codes for "not found", such as 40401. A plain 404 may
            # mean that the URL is not that of a registry.
            if error.status == _NOT_FOUND and error.error_code != _NOT_FOUND:
                return None
            raise
        return _registered(answer, what, schema_id)

    def _call(
        self, method: str, path: str, what: str, request: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Return the JSON object in the response to a request."""
        body = None if request is None else json.dumps(request).encode()
        end = self._clock() + _MOST_S
        retries = 0
        reasons: dict[RegistryUrl, _Reason] = {}
        while True:
            answer, retry_after_s = self._ask_each(method, path, what, body, end, reasons)
            if answer is not None:
                return _object(answer, what, self._secrets)
            wait_s = min(_FIRST_WAIT_S * 2**retries, _LONGEST_WAIT_S) * self._random.random()
            if retry_after_s is not None:
                wait_s = min(retry_after_s, _LONGEST_WAIT_S)
            if retries == _RETRIES or self._clock() + wait_s >= end:
                why = _each_reason(reasons)
                raise RestClientException(
                    f"the schema registry cannot {what}, after {retries + 1} attempts: {why}",
                    unanswered=_kinds(reasons),
                )
            self._sleep(wait_s)
            retries += 1

    def _ask_each(
        self,
        method: str,
        path: str,
        what: str,
        body: bytes | None,
        end: float,
        reasons: dict[RegistryUrl, _Reason],
    ) -> tuple[HttpAnswer | None, float | None]:
        """Send a request to one URL after the other. Return (answer, retry_after_s).

        what: what the call does, for error messages. end: when the call ends; no request is sent
        after that time. reasons: for each URL, why it returned no answer; this method updates them.
        answer: the first response whose status is not retriable, None if no URL returns one. A
        status such as 503 is retriable. retry_after_s: the longest delay of the Retry-After
        headers, None if no response has this header. Raise RestClientException if all URLs were
        asked and no error is retriable.
        """
        delays: list[float] = []
        may_retry = False
        for each in self._urls:
            if self._clock() >= end:
                reasons.setdefault(each, _Reason("it was not asked, because the time was over"))
                may_retry = True
                continue
            try:
                given = self._headers(each.address)
                self._secrets |= {*secrets_in(given)}
                headers = {"Accept": f"{_MEDIA_TYPE}, application/json", **given}
                if body is not None:
                    headers["Content-Type"] = _MEDIA_TYPE
                context = self._context if is_encrypted(each.address) else None
                at = each.address.rstrip("/") + path
                # Fetching a token may have taken time, too.
                limits = _within(self._limits, max(0.0, end - self._clock()))
                answer = send(method, at, body, headers, limits, context, CERTIFICATE_HINT)
            except HttpException as error:
                reason = _Reason(str(error), error.is_refused)
            except TokenException as error:
                why = f"the client got no OAuth token: {error}"
                reason = _Reason(why, error.is_final, "token")
            else:
                if answer.status not in _RETRIABLE:
                    return answer, None
                if answer.retry_after_s is not None:
                    delays.append(answer.retry_after_s)
                reason = _Reason(_said(answer, self._secrets))
            reasons[each] = reason
            may_retry = may_retry or not reason.is_final
        if not may_retry:
            why = _each_reason(reasons)
            raise RestClientException(
                f"the schema registry cannot {what}: {why}", unanswered=_kinds(reasons)
            )
        return None, max(delays, default=None)


def _within(limits: HttpLimits, left_s: float) -> HttpLimits:
    """Return limits whose times have a sum of at most `left_s`.

    Both times are reduced in the same proportion.
    """
    share = min(1.0, left_s / (limits.connect_s + limits.read_s))
    return replace(limits, connect_s=limits.connect_s * share, read_s=limits.read_s * share)


def _each_reason(reasons: Mapping[RegistryUrl, _Reason]) -> str:
    return "; ".join(f"{url.shown}: {reason.said}" for url, reason in reasons.items())


def _kinds(reasons: Mapping[RegistryUrl, _Reason]) -> str:
    """Return `RestClientException.unanswered`."""
    found = {
        f"{'final' if why.is_final else 'retriable'}: {why.needed}" for why in reasons.values()
    }
    return ", ".join(sorted(found))


def _normalized(normalize: bool) -> str:  # noqa: FBT001 - one caller's argument
    return "?normalize=true" if normalize else ""


def _request_of(schema: Schema) -> dict[str, Any]:
    found: dict[str, Any] = {"schema": schema.text}
    # Old registries do not know these two fields, so they are left out if they are not needed.
    if schema.schema_type != AVRO:
        found["schemaType"] = schema.schema_type
    if schema.references:
        found["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version}
            for each in schema.references
        ]
    return found


# -- responses ------------------------------------------------------------------------------------

# What to do: the keys are error codes of the registry, and HTTP statuses.
_ADVICE: Final = {
    **dict.fromkeys(
        (301, 302, 307, 308), "set schema.registry.url to the URL that it redirects to"
    ),
    401: "check basic.auth.user.info or bearer.auth.*",
    403: "ask for the permission on the subject",
    404: "check that schema.registry.url is the URL of a schema registry",
    409: (
        "the schema is incompatible with an earlier version: change it, or set another "
        "compatibility level for the subject"
    ),
    42201: "the registry does not accept the schema: correct it",
    42205: "the registry's mode does not allow this: ask its administrator",
}


def _parsed(body: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _said(answer: HttpAnswer, secrets: Iterable[str]) -> str:
    """Return a phrase: the status of a response, and its error code and message if it has them."""
    code, message = _error_of(answer, secrets)
    said = "" if code in (None, answer.status) else f", error code {code}"
    return f"it answered {answer.status}{said}" + (f" ({message})" if message else "")


def _error_of(answer: HttpAnswer, secrets: Iterable[str]) -> tuple[int | None, str]:
    found = _parsed(answer.body) or {}
    code, message = found.get("error_code"), found.get("message")
    code = code if isinstance(code, int) and not isinstance(code, bool) else None
    return code, printable(message, secrets) if isinstance(message, str) else ""


def _object(answer: HttpAnswer, what: str, secrets: Iterable[str]) -> Mapping[str, Any]:
    """Return the JSON object in a response.

    what: what the call does, for error messages. secrets: what error messages do not show. Raise
    RestClientException if the status is not 2xx, or if the body is not a JSON object.
    """
    if not 200 <= answer.status < 300:
        code, _ = _error_of(answer, secrets)
        advice = _ADVICE.get(code or 0) or _ADVICE.get(answer.status)
        raise RestClientException(
            f"the schema registry cannot {what}: {_said(answer, secrets)}"
            + (f"; {advice}" if advice else ""),
            status=answer.status,
            error_code=answer.status if code is None else code,
        )
    found = _parsed(answer.body)
    if found is None:
        raise _no_answer(what, "is not a JSON object")
    return found


def _no_answer(what: str, why: str) -> RestClientException:
    return RestClientException(
        f"the schema registry cannot {what}: its response {why}; {_ADVICE[404]}"
    )


def _id(found: Mapping[str, Any], what: str) -> int:
    schema_id = found.get("id")
    if not isinstance(schema_id, int) or isinstance(schema_id, bool):
        raise _no_answer(what, "has no id")
    # The prefix of each record has four bytes for the id.
    if not 0 <= schema_id <= _LARGEST_ID:
        raise _no_answer(what, f"has the id {schema_id}, which is not from 0 to {_LARGEST_ID}")
    return schema_id


def _guid(found: Mapping[str, Any]) -> str:
    """Return the GUID of a schema; empty if the registry has returned none or an invalid one."""
    with suppress(ValueError, AttributeError, TypeError):
        return str(uuid.UUID(found.get("guid")))
    return ""


def _registered(found: Mapping[str, Any], what: str, schema_id: int | None) -> RegisteredSchema:
    # Each field may be null if it has its default.
    text, kind = found.get("schema"), found.get("schemaType")
    subject, version = found.get("subject"), found.get("version")
    kind, subject = AVRO if kind is None else kind, "" if subject is None else subject
    if not all(isinstance(each, str) for each in (text, kind, subject)):
        raise _no_answer(what, "has no schema")
    references = found.get("references") or []
    if not isinstance(references, list):
        raise _no_answer(what, "has invalid references")
    return RegisteredSchema(
        Schema(str(text), str(kind), tuple(_reference(each, what) for each in references)),
        _id(found, what) if schema_id is None else schema_id,
        subject,
        version if isinstance(version, int) else 0,
        has_rules=_has_rules(found),
        guid=_guid(found),
    )


def _has_rules(found: Mapping[str, Any]) -> bool:
    """Return whether a schema has rules. All entries of a ruleSet count, except empty lists."""
    rules = found.get("ruleSet")
    return any(rules.values()) if isinstance(rules, dict) else bool(rules)


def _reference(found: object, what: str) -> SchemaReference:
    parts = found if isinstance(found, dict) else {}
    name, subject, version = (parts.get(each) for each in ("name", "subject", "version"))
    has_names = isinstance(name, str) and isinstance(subject, str)
    if not has_names or not isinstance(version, int) or isinstance(version, bool):
        raise _no_answer(what, "has an invalid reference")
    return SchemaReference(str(name), str(subject), version)
