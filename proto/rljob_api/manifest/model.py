"""`spec.model`: which model is trained."""

from typing import Literal

from pydantic import Field

from rljob_api.manifest.base import Decimal, Name, Path, Section, Text


class ModelSourceSpec(Section):
    """Where the weights come from when not from a hub."""

    claim_name: Name | None = Field(
        default=None, description="PersistentVolumeClaim that holds the model folder; only read in a cluster."
    )
    path: Path | None = Field(
        default=None, description="Folder inside the claim. Without a claim, and on one machine, as spec.model.name."
    )
    secret_name: Name | None = Field(
        default=None,
        description="Secret whose keys become variables of rollouts and trainer, such as HF_TOKEN; only in a cluster.",
    )


class LoraSpec(Section):
    """Train and publish an adapter only."""

    rank: int = Field(default=16, ge=1, le=1024, description="Rank of the update matrices.")
    alpha: Decimal = Field(default="32", description="Scale numerator: the update is multiplied by alpha / rank.")
    dropout: Decimal = Field(default="0", description="Dropout probability on the adapter's input, 0 to 1.")
    target_modules: tuple[Text, ...] = Field(
        default=(),
        max_length=32,
        description="Names of the linear modules that get an adapter; empty: all linear ones.",
    )


class ReferenceSpec(Section):
    """The frozen policy that the KL term compares with."""

    name: Path = Field(description="Hub id, path or builtin name of the reference model.")
    revision: Text | None = Field(default=None, description="Hub revision of the reference model.")


class ModelSpec(Section):
    """Which model is trained."""

    name: Path = Field(description="Hugging Face id, folder, or builtin:smollm2-135m-instruct.")
    revision: Text | None = Field(default=None, description="Hub revision: branch, tag or commit.")
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="bfloat16",
        description="Number format of published and served weights, whatever the model's files hold.",
    )
    trust_remote_code: bool = Field(default=False, description="Run Python code that comes with the model.")
    tokenizer: Path | None = Field(default=None, description="Tokenizer, if it is not the model's own.")
    source: ModelSourceSpec | None = Field(default=None, description="Where weights come from when not a hub.")
    lora: LoraSpec | None = Field(default=None, description="Train and publish an adapter only.")
    reference: ReferenceSpec | None = Field(
        default=None,
        description="Reference model of the KL term; needed exactly when algorithm.loss.klCoef is above 0.",
    )
