from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ClaimRequest(_message.Message):
    __slots__ = ("episode", "wait_s")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    episode: str
    wait_s: float
    def __init__(self, episode: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ClaimReply(_message.Message):
    __slots__ = ("lease", "lease_s")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    lease: str
    lease_s: float
    def __init__(self, lease: _Optional[str] = ..., lease_s: _Optional[float] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("lease", "command", "timeout_s", "max_output")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    lease: str
    command: str
    timeout_s: float
    max_output: int
    def __init__(self, lease: _Optional[str] = ..., command: _Optional[str] = ..., timeout_s: _Optional[float] = ..., max_output: _Optional[int] = ...) -> None: ...

class ExecReply(_message.Message):
    __slots__ = ("exit_code", "stdout", "stderr", "truncated", "stopped", "refused")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    stopped: str
    refused: str
    def __init__(self, exit_code: _Optional[int] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., truncated: bool = ..., stopped: _Optional[str] = ..., refused: _Optional[str] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("lease", "path", "max_bytes")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease: str
    path: str
    max_bytes: int
    def __init__(self, lease: _Optional[str] = ..., path: _Optional[str] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("data", "refused")
    DATA_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    refused: str
    def __init__(self, data: _Optional[bytes] = ..., refused: _Optional[str] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("lease", "path", "data")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    lease: str
    path: str
    data: bytes
    def __init__(self, lease: _Optional[str] = ..., path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class PlaceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
