"""What does another API call the fields of a chat that its errors speak of?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from splitserve.engine_core.errors import InvalidRequestError

# What matches at the beginning of a chat's field -> what stands there in the other API.
Names = Sequence[tuple[re.Pattern[str], str]]


@contextmanager
def errors_named(names: Names) -> Iterator[None]:
    """Name the fields of a chat in the errors raised here as another API does."""
    try:
        yield
    except InvalidRequestError as error:
        param = error.param or ""
        named = _named(param, names)
        if named == param:
            raise
        again = InvalidRequestError(str(error).replace(param, named), named, error.code)
        again.status = error.status
        raise again from None


def _named(param: str, names: Names) -> str:
    for pattern, name in names:
        param = pattern.sub(name, param)
    return param
