"""What more than one role needs."""

import hashlib
import json
import posixpath

from rljob_api import roles
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.manifest.model import BUILTIN
from rljob_api.placement import Placement


def identity(job: RLJob, placement: Placement) -> roles.JobIdentity:
    """Return which run the process belongs to."""
    return roles.JobIdentity(
        name=job.metadata.name,
        namespace=placement.namespace,
        uid=placement.uid,
        config_generation=placement.config_generation,
    )


def model_config(spec: JobSpec, placement: Placement) -> roles.ModelConfig:
    """Return the model as every process loads it."""
    name = spec.model.name
    return roles.ModelConfig(
        name=name,
        revision=spec.model.revision or "",
        tokenizer=spec.model.tokenizer,
        dtype=spec.model.dtype,
        trust_remote_code=spec.model.trust_remote_code,
        path=_source_folder(spec, placement) or _named_folder(name, placement.base_dir),
        cache_dir=placement.cache_dir,
    )


def _source_folder(spec: JobSpec, placement: Placement) -> str:
    """Return the folder that spec.model.source names, "" if it names none."""
    source = spec.model.source
    if source is None or (source.claim_name is None and source.path is None):
        return ""
    base = placement.model_dir if source.claim_name is not None and placement.model_dir else placement.base_dir
    return posixpath.normpath(posixpath.join(base, source.path or "."))


def reference_config(spec: JobSpec, placement: Placement) -> roles.ModelConfig | None:
    """Return the frozen model of the KL term, or None."""
    reference = spec.model.reference
    if reference is None:
        return None
    return roles.ModelConfig(
        name=reference.name,
        revision=reference.revision or "",
        dtype=spec.model.dtype,
        trust_remote_code=spec.model.trust_remote_code,
        path=_named_folder(reference.name, placement.base_dir),
        cache_dir=placement.cache_dir,
    )


def _named_folder(name: str, base_dir: str) -> str:
    """Return a folder as an absolute path, "" for a built-in; anything that does not look like one is a hub id."""
    if name.startswith(BUILTIN):
        return ""
    is_folder = name.startswith(("/", "./", "../"))
    return posixpath.normpath(posixpath.join(base_dir, name)) if is_folder else name


def digest(value: object) -> str:
    """Return a digest of a JSON value, the same in every process."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def user_code(spec: JobSpec, placement: Placement) -> str:
    """Return the user's file, "" without one. A ConfigMap's key is the file's name."""
    code = spec.workflow.code
    if code is None:
        return ""
    if code.config_map is not None and placement.code_dir:
        return posixpath.join(placement.code_dir, posixpath.basename(code.path))
    return posixpath.normpath(posixpath.join(placement.base_dir, code.path))
