from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset", "length", "tied")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TIED_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    length: int
    tied: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., tied: _Optional[_Iterable[str]] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("layout_id", "tensors", "image_bytes", "base")
    LAYOUT_ID_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    layout_id: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    image_bytes: int
    base: str
    def __init__(self, layout_id: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., image_bytes: _Optional[int] = ..., base: _Optional[str] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("artifact_id", "encoding", "num_bytes", "piece_bytes", "pieces")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    encoding: str
    num_bytes: int
    piece_bytes: int
    pieces: bytes
    def __init__(self, artifact_id: _Optional[str] = ..., encoding: _Optional[str] = ..., num_bytes: _Optional[int] = ..., piece_bytes: _Optional[int] = ..., pieces: _Optional[bytes] = ...) -> None: ...

class WeightVersion(_message.Message):
    __slots__ = ("job", "version", "step", "attempt", "parent", "created_at", "layout_id", "digests", "state_hash", "kind", "base", "base_state_hash", "artifacts", "changed", "changed_ratio", "fallback_reason", "exporter", "image")
    class DigestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BASE_STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_RATIO_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    EXPORTER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    job: str
    version: int
    step: int
    attempt: int
    parent: int
    created_at: float
    layout_id: str
    digests: _containers.ScalarMap[int, bytes]
    state_hash: str
    kind: str
    base: int
    base_state_hash: str
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    changed: int
    changed_ratio: float
    fallback_reason: str
    exporter: str
    image: Artifact
    def __init__(self, job: _Optional[str] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., parent: _Optional[int] = ..., created_at: _Optional[float] = ..., layout_id: _Optional[str] = ..., digests: _Optional[_Mapping[int, bytes]] = ..., state_hash: _Optional[str] = ..., kind: _Optional[str] = ..., base: _Optional[int] = ..., base_state_hash: _Optional[str] = ..., artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., changed: _Optional[int] = ..., changed_ratio: _Optional[float] = ..., fallback_reason: _Optional[str] = ..., exporter: _Optional[str] = ..., image: _Optional[_Union[Artifact, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("session", "manifest", "layout", "broadcasts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    session: str
    manifest: WeightVersion
    layout: Layout
    broadcasts: str
    def __init__(self, session: _Optional[str] = ..., manifest: _Optional[_Union[WeightVersion, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., broadcasts: _Optional[str] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("outcome", "head_version", "detail")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    HEAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    head_version: int
    detail: str
    def __init__(self, outcome: _Optional[str] = ..., head_version: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class ManifestRequest(_message.Message):
    __slots__ = ("session", "want", "have", "layout", "damaged", "stored")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    session: str
    want: int
    have: int
    layout: bool
    damaged: _containers.RepeatedScalarFieldContainer[str]
    stored: bool
    def __init__(self, session: _Optional[str] = ..., want: _Optional[int] = ..., have: _Optional[int] = ..., layout: bool = ..., damaged: _Optional[_Iterable[str]] = ..., stored: bool = ...) -> None: ...

class WeightSource(_message.Message):
    __slots__ = ("address", "kind", "have")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    address: str
    kind: str
    have: bytes
    def __init__(self, address: _Optional[str] = ..., kind: _Optional[str] = ..., have: _Optional[bytes] = ...) -> None: ...

class ManifestReply(_message.Message):
    __slots__ = ("chain", "layout", "sources", "image")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    chain: _containers.RepeatedCompositeFieldContainer[WeightVersion]
    layout: Layout
    sources: _containers.RepeatedCompositeFieldContainer[WeightSource]
    image: Artifact
    def __init__(self, chain: _Optional[_Iterable[_Union[WeightVersion, _Mapping]]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[WeightSource, _Mapping]]] = ..., image: _Optional[_Union[Artifact, _Mapping]] = ...) -> None: ...

class PiecesRequest(_message.Message):
    __slots__ = ("session", "artifact_id", "have", "failed")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    session: str
    artifact_id: str
    have: bytes
    failed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[str] = ..., artifact_id: _Optional[str] = ..., have: _Optional[bytes] = ..., failed: _Optional[_Iterable[str]] = ...) -> None: ...

class PiecesReply(_message.Message):
    __slots__ = ("sources", "share", "again_s")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_S_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[WeightSource]
    share: bytes
    again_s: float
    def __init__(self, sources: _Optional[_Iterable[_Union[WeightSource, _Mapping]]] = ..., share: _Optional[bytes] = ..., again_s: _Optional[float] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("artifact_id", "offset", "length", "session")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    offset: int
    length: int
    session: str
    def __init__(self, artifact_id: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., session: _Optional[str] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("artifact_id", "num_bytes")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    num_bytes: int
    def __init__(self, artifact_id: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class Broadcast(_message.Message):
    __slots__ = ("group", "rank", "size", "rendezvous", "artifact")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    group: int
    rank: int
    size: int
    rendezvous: str
    artifact: Artifact
    def __init__(self, group: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., rendezvous: _Optional[str] = ..., artifact: _Optional[_Union[Artifact, _Mapping]] = ...) -> None: ...

class BroadcastReport(_message.Message):
    __slots__ = ("member", "group", "artifact_id", "failure")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    member: str
    group: int
    artifact_id: str
    failure: str
    def __init__(self, member: _Optional[str] = ..., group: _Optional[int] = ..., artifact_id: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class BroadcastReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
