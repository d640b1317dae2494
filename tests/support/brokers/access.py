"""Rights of clients on topics, set by librdkafka; the broker needs an authorizer."""

from __future__ import annotations

import time

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
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, _EVERYBODY, "*")
    old = AclBindingFilter(*place, AclOperation.ANY, AclPermissionType.ANY)
    for deleted in admin.delete_acls([old]).values():
        deleted.result()
    new = [AclBinding(*place, AclOperation[name], AclPermissionType.ALLOW) for name in operations]
    for created in admin.create_acls(new).values():
        created.result()
    # The controller has the rights at once; the broker's authorizer gets them a little later.
    deadline = time.monotonic() + _TIMEOUT_S
    while {acl.operation for acl in admin.describe_acls(old).result()} != {
        a.operation for a in new
    }:
        assert time.monotonic() < deadline, f"the broker does not know the rights on {topic}"
