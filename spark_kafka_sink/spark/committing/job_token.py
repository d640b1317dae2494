"""JobToken: the delegation token of one batch job. The driver expires it when the job ends.

Only the owner and the renewers of a token may expire it (Kafka's DelegationTokenManager).
The token of a job has no renewers, so only its owner can expire it: the process that commits needs
the driver's credentials. The writer must not contain these credentials, because it is pickled into
every task. So they are split into two parts. Each part alone contains only random bytes. The writer
contains one part, and a file in the driver's folder contains the other.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.auth.delegation_tokens import is_fresh
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.error_codes import DELEGATION_TOKEN_NOT_FOUND
from spark_kafka_sink.errors import ApiException
from spark_kafka_sink.logs import without_path
from spark_kafka_sink.model import DelegationToken, Secret
from spark_kafka_sink.spark.committing.job_commit import say
from spark_kafka_sink.spark.options import name_kafka_options
from spark_kafka_sink.spark.session import driver_folder

logger = logging.getLogger(__name__)

# The longest wait for the token to be expired. It is short, because the job's work is done.
_MAX_BLOCK_MS: Final = 10_000
_PAUSE_S: Final = 0.1


class _Kept(msgspec.Struct, frozen=True):
    """What the process that commits needs to expire a token: the driver's config and the token."""

    config: ProducerConfig
    token: DelegationToken


@dataclass(frozen=True, slots=True)
class JobToken:
    """The delegation token of a job.

    Its credentials are stored in two parts. file: the name of the file with the first part, in the
    driver's folder. part: the second part.
    """

    token_id: str
    file: str
    part: bytes = field(repr=False)

    @classmethod
    def keep(cls, config: ProducerConfig, token: DelegationToken) -> Self | None:
        """Store what is needed to expire a token. If that fails, log a warning and return None."""
        content = encoded(_Kept(config, token))
        part = secrets.token_bytes(len(content))
        made = cls(token.token_id, f".pykafka-token-{secrets.token_hex(16)}", part)
        try:
            with os.fdopen(_create(made._path), "wb") as file:
                file.write(_xor(content, part))
        except OSError as error:
            logger.warning(
                "the delegation token %s stays valid after the job: the credentials to expire it "
                "cannot be kept on the driver (%s)", token.token_id, without_path(error),
            )  # fmt: skip
            return None
        return made

    @property
    def _path(self) -> Path:
        folder = driver_folder()
        if folder is None:
            raise FileNotFoundError("no SparkContext runs")
        return folder / self.file

    @name_kafka_options()
    def expire(self) -> None:
        """Expire the token, unless this was done before. Print errors on stderr; raise nothing."""
        try:
            path = self._path
            content = _xor(path.read_bytes(), self.part)
            path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            self._say_failure(without_path(error))
            return
        try:
            kept = msgspec.json.decode(content, type=_Kept, dec_hook=lambda kind, text: kind(text))
            _expire(kept)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job has ended
            self._say_failure(str(error))

    def _say_failure(self, why: str) -> None:
        say(
            f"pykafka: the delegation token {self.token_id} could not be expired at the end of the "
            f"job, and expires later: {why}"
        )


def _expire(kept: _Kept) -> None:
    max_block_ms = min(_MAX_BLOCK_MS, kept.config.max_block_ms)
    config = msgspec.structs.replace(kept.config, max_block_ms=max_block_ms)
    with KafkaAdmin(config) as admin:
        while True:
            try:
                admin.expire_delegation_token(kept.token.hmac)
            except ApiException as error:
                if error.code != DELEGATION_TOKEN_NOT_FOUND:
                    raise
                if not is_fresh(kept.token, time.time() * 1000):
                    return  # somebody has expired it
                # The token was created a moment ago, and this broker may not know it yet.
                time.sleep(_PAUSE_S)
            else:
                return


def _create(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=False))


def encoded(thing: object) -> bytes:
    """Return a value as JSON with readable secrets. Never log or store this JSON as it is."""
    return msgspec.json.encode(thing, enc_hook=_text)


def _text(secret: object) -> str:
    if isinstance(secret, Secret):
        return secret.value
    message = f"a configuration has a {type(secret).__name__}"
    raise NotImplementedError(message)
