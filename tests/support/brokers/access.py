"""Rights of clients on resources, set by librdkafka; the broker needs an authorizer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

# The principal of all clients on a listener without authentication.
_EVERYBODY = "User:ANONYMOUS"
_TIMEOUT_S = 30.0


def allow_only(bootstrap: str, topic: str, *operations: str) -> None:
    """Allow all clients these operations on a topic, and no others."""
    allowed = [(AclOperation[name], AclPermissionType.ALLOW) for name in operations]
    _replace(bootstrap, (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL), allowed)


def allow_all_but(bootstrap: str, operation: str, kind: str, name: str) -> None:
    """Deny all clients one operation on a resource, and allow all others.

    kind: TOPIC or BROKER (the cluster), or TRANSACTIONAL_ID for all ids that begin with `name`.
    """
    is_prefix = kind == "TRANSACTIONAL_ID"
    pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
    rights = [
        (AclOperation.ALL, AclPermissionType.ALLOW),
        (AclOperation[operation], AclPermissionType.DENY),
    ]
    _replace(bootstrap, (ResourceType[kind], name, pattern), rights)


def _replace(
    bootstrap: str,
    resource: tuple[ResourceType, str, ResourcePatternType],
    rights: Sequence[tuple[AclOperation, AclPermissionType]],
) -> None:
    """Let a resource have these rights, and wait until the broker knows them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    old = AclBindingFilter(*resource, _EVERYBODY, "*", AclOperation.ANY, AclPermissionType.ANY)
    for deleted in admin.delete_acls([old]).values():
        deleted.result()
    new = [AclBinding(*resource, _EVERYBODY, "*", *right) for right in rights]
    for created in admin.create_acls(new).values():
        created.result()
    # The controller has the rights at once; the broker's authorizer gets them a little later.
    deadline = time.monotonic() + _TIMEOUT_S
    while {acl.operation for acl in admin.describe_acls(old).result()} != {
        a.operation for a in new
    }:
        assert time.monotonic() < deadline, f"the broker does not know the rights on {resource[1]}"
