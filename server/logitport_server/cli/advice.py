"""Errors of the SDK, with advice for operators: the SDK's names Python's arguments, a command has flags."""

from __future__ import annotations

# Texts of the SDK, and those that replace them. Longer ones come before the ones that they begin with.
_REPLACEMENTS = (
    ("tls=Tls(ca=..., cert=..., key=...)", "--tls-ca FILE, --tls-cert FILE and --tls-key FILE"),
    (
        "tls=Tls(ca=...), with cert and key if it requires client certificates",
        "--tls-ca FILE, with --tls-cert FILE and --tls-key FILE if it requires client certificates",
    ),
    ("tls=Tls(ca=...)", "--tls-ca FILE"),
    ("tls=Tls(ca='FILE')", "--tls-ca FILE"),
    ("tls=Tls(...)", "--tls-ca FILE"),
    ("Tls(server_name=...)", "--tls-server-name"),
    ("Tls: cert and key go together; pass both", "--tls-cert and --tls-key go together; give both"),
    (
        "pass the certificate of its authority as Tls(ca=...), or set LOGITPORT_TLS",
        "give the certificate of its authority as --tls-ca FILE",
    ),
    ("Tls: cannot read", "cannot read"),
    ("pass one as Client(token=...) or in LOGITPORT_TOKEN", "set LOGITPORT_TOKEN"),
    ("unset LOGITPORT_TOKEN and token if", "unset LOGITPORT_TOKEN if"),
    ("List returns those that you can see", "`logitport processors list` shows those that you can see"),
)


def with_flags(text: str) -> str:
    """Return the text of an error of the SDK with this command's flags in place of Python's arguments."""
    for of_python, of_command in _REPLACEMENTS:
        text = text.replace(of_python, of_command)
    return text
