"""`format`: what llguidance does not know is said as a pattern, or is a remark as JSON schema has it."""

from __future__ import annotations

from typing import Final

# Those of llguidance.
_KNOWN: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
# Each allows what is narrower: ASCII of what may hold other letters.
_NARROWER: Final = {
    "idn-email": "email",
    "host-name": "hostname",
    "ip-address": "ipv4",
    "iri": "uri",
}
_CHARACTER: Final = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
_NO_COLON: Final = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=@]|%[0-9a-fA-F]{2})"
_REGISTERED: Final = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})*"
_USER: Final = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*"
_AUTHORITY: Final = rf"(?:{_USER}@)?{_REGISTERED}(?::[0-9]*)?"
_PATH: Final = rf"(?:/{_CHARACTER}*)*"
_TAIL: Final = rf"(?:\?(?:{_CHARACTER}|[/?])*)?(?:#(?:{_CHARACTER}|[/?])*)?"
_ABSOLUTE: Final = rf"/(?:{_CHARACTER}+{_PATH})?"
# Of RFC 3986, without addresses in brackets.
_REFERENCE: Final = (
    rf"^(?:(?:[a-zA-Z][a-zA-Z0-9+\-.]*:)(?://{_AUTHORITY}{_PATH}|{_ABSOLUTE}|{_CHARACTER}+{_PATH}|)"
    rf"|//{_AUTHORITY}{_PATH}|{_ABSOLUTE}|{_NO_COLON}+{_PATH}|){_TAIL}$"
)
# Of what international names may be, none that looks like a translated one.
_LABEL: Final = "[a-z0-9]+(?:-[a-z0-9]+)*"
_POINTER: Final = r"(?:/(?:[^~/]|~[01])*)*"
_PATTERNS: Final = {
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
}
# Of JSON schema, but too much to say.
_REFUSED: Final = frozenset(("regex", "uri-template"))


def is_served(format_: str) -> bool:
    """Tell whether llguidance holds texts to a format, or is to refuse it."""
    return format_ in _KNOWN or format_ in _REFUSED


def instead_of(format_: str) -> dict[str, str]:
    """Return what is to be said instead of a format that is not served."""
    if format_ in _NARROWER:
        return {"format": _NARROWER[format_]}
    if format_ == "idn-hostname":
        return {"format": "hostname", "pattern": rf"^{_LABEL}(?:\.{_LABEL})*$"}
    return {"pattern": _PATTERNS[format_]} if format_ in _PATTERNS else {}
