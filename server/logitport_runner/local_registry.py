"""A registry that also checks and finds processors, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import payload
from logitport_builtins import BUILTINS
from logitport_server.principal_process.processor_resolver import ProcessorResolver
from logitport_server.principal_process.registration_checks import Checks
from logitport_server.registry.registry import Registry
from logitport_session.processor_sources.installed import Installed
from logitport_session.trust.principals import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.payload import Payload
    from logitport_proto import common_pb2, registry_pb2
    from logitport_server.registry.policy import PayloadPolicy
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import Principal


class LocalRegistry(Registry):
    """A registry that sessions of this process can use. A server leaves that to the processes of principals.

    Args:
        policy: the operator's rules for payloads.
        check_python: raises PayloadError if no configured Python can run a payload.
        options: see `Registry`.

    Raises:
        InvalidArgument, LimitExceeded: an installed program breaks a rule.
        LogitportError: the store cannot be read.
    """

    def __init__(
        self,
        policy: PayloadPolicy,
        *,
        check_python: Callable[[Payload], None] = payload.check_python,
        installed: Mapping[str, Any] = BUILTINS,
        **options: Any,
    ) -> None:
        super().__init__(policy, **options)
        self.installed = Installed(installed).verify()
        self.set_installed({name: self.installed.describe(name) for name in self.installed})
        self._checks = Checks(policy, check_python)
        self._names = ProcessorResolver(self.installed, policy, self._find_registered)

    def resolve(self, processor: common_pb2.Processor, principal: Principal = ANONYMOUS, tenant: str = "") -> Source:
        """Look up a request's processor; see `ProcessorResolver.resolve`."""
        return self._names.resolve(processor, principal, tenant)

    def register(
        self, serialized: str, name: str, principal: Principal = ANONYMOUS, *, replace: bool, shared: bool = False
    ) -> registry_pb2.ProcessorInfo:
        """Check and register a payload. Raises the errors of `Checks.check` and `Registry.register_checked`."""
        shipped = self._checks.check(serialized, name)
        return self.register_checked(shipped, serialized, name, principal, replace=replace, shared=shared)

    def _find_registered(self, text: str, principal: Principal, is_name: bool) -> tuple[str, Payload]:
        entry = self.resolve_registered(text, principal.name, is_name=is_name)
        return entry.owner, entry.payload
