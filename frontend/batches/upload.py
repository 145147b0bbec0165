"""The form of an upload, read as it arrives: its file is passed on piece by piece, fields stay here."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from splitserve.engine_core.errors import InvalidRequestError

# Beside the file: its headers, other fields, borders.
FORM_BYTES = 64 * 1024
_MAX_PARTS = 16
_MAX_NAME_CHARS = 512


@dataclass(slots=True)
class _Part:
    name: str = ""
    file_name: str | None = None
    value: bytearray = field(default_factory=bytearray)


class UploadForm:
    """A form of which some has arrived.

    Attributes:
        fields: those that are complete, by name.
        file_name: of the file, None before it begins.
        num_bytes: of the file so far.

    Args:
        content_type: of the request.

    Raises:
        InvalidRequestError: it names no border.
    """

    def __init__(self, content_type: str) -> None:
        _, options = parse_options_header(content_type)
        border = options.get(b"boundary")
        if not border or len(border) > 256:
            raise InvalidRequestError("the form has no boundary", None, "invalid_form")
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self.num_bytes = 0
        self._data = bytearray()
        self._part = _Part()
        self._num_parts = 0
        self._num_form_bytes = 0
        self._header = (bytearray(), bytearray())
        self._is_ended = False
        self._parser = MultipartParser(
            border,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_part_data": lambda data, start, end: self._add(data[start:end]),
                "on_part_end": self._end,
                "on_end": self._finish,
            },
        )

    def write(self, data: bytes) -> None:
        """Take some of the body.

        Raises:
            InvalidRequestError: it is no such form, or too much of it is no file.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequestError(f"the form cannot be read: {error}", None, "invalid_form") from None

    def take(self, at_least: int = 1) -> bytes:
        """Return what has come of the file, once that is so much; else b""."""
        if len(self._data) < at_least:
            return b""
        taken = bytes(self._data)
        self._data.clear()
        return taken

    def end(self) -> None:
        """Check that the form is complete, with a file.

        Raises:
            InvalidRequestError: it is not.
        """
        if not self._is_ended:
            raise InvalidRequestError("the form ends before its last boundary", None, "invalid_form")
        if self.file_name is None:
            raise InvalidRequestError("file is missing", "file", "missing_required_parameter")

    def _begin(self) -> None:
        self._part = _Part()
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {_MAX_PARTS} parts", None, "invalid_form")

    def _add_header(self, which: int, data: bytes) -> None:
        self._count(len(data))
        self._header[which].extend(data)

    def _end_header(self) -> None:
        name, value = (bytes(each) for each in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        part = self._part
        part.name = options.get(b"name", b"").decode(errors="replace")
        if part.name != "file":
            return
        if self.file_name is not None:
            raise InvalidRequestError("file must be given once", "file")
        part.file_name = options.get(b"filename", b"upload").decode(errors="replace")[:_MAX_NAME_CHARS]
        self.file_name = part.file_name

    def _add(self, data: bytes) -> None:
        if self._part.file_name is not None:
            self._data.extend(data)
            self.num_bytes += len(data)
            return
        self._count(len(data))
        self._part.value.extend(data)

    def _count(self, num_bytes: int) -> None:
        self._num_form_bytes += num_bytes
        if self._num_form_bytes > FORM_BYTES:
            raise InvalidRequestError("the form has too much beside its file", None, "invalid_form")

    def _end(self) -> None:
        if self._part.file_name is None:
            self.fields[self._part.name] = self._part.value.decode(errors="replace")

    def _finish(self) -> None:
        self._is_ended = True


def form_of(request: Request) -> UploadForm:
    """Return the form of a request, of which nothing has been read yet; raises InvalidRequestError."""
    return UploadForm(request.headers.get("content-type", ""))
