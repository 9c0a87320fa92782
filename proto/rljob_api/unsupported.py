"""Fields that users of other systems look for and that nothing serves yet: each with what works instead.

They are not in the schema; a manifest that has one is refused as any unknown field is, and told the remedy.
"""

from collections.abc import Mapping

# By path below spec.
UNSUPPORTED: Mapping[str, str] = {
    "queue": "jobs start without a Kueue queue",
    "gang": "pods are scheduled one by one",
    "model.lora": "all weights are trained",
    "observability.traces": "a run shows logs and metrics",
    "weightSync.delta": "every version travels whole",
    "weightSync.anchorEvery": "every version travels whole",
    "trainer.optimizer.type": "the optimizer is AdamW",
    "trainer.masterWeightsDtype": "master weights are float32",
}
