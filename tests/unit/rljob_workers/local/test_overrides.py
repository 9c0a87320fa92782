import pytest
import yaml

from rljob_api import errors
from rljob_api.validation import load
from rljob_workers.local import prepare

TEXT = "spec:\n  maxSteps: 25\n  trainer: {optimizer: {learningRate: '1e-6'}}\n  stop: [a]\n"


def changed(*made: str) -> dict[str, object]:
    return dict(yaml.safe_load(prepare.apply_overrides(TEXT, list(made)))["spec"])


def test_text_without_overrides_is_not_touched() -> None:
    assert prepare.apply_overrides(TEXT, []) is TEXT


def test_field_is_replaced_and_the_rest_stays() -> None:
    assert changed("spec.maxSteps=5") | {"maxSteps": 25} == yaml.safe_load(TEXT)["spec"]
    assert changed("spec.maxSteps=5")["maxSteps"] == 5


def test_section_that_was_not_written_is_made() -> None:
    assert changed("spec.checkpoint.everySteps=2")["checkpoint"] == {"everySteps": 2}


@pytest.mark.parametrize("number", ["2e-5", "0.00002", "1.0"])
def test_fraction_stays_the_text_that_the_manifest_wants(number: str) -> None:
    spec = changed(f"spec.trainer.optimizer.learningRate={number}")
    assert spec["trainer"] == {"optimizer": {"learningRate": number}}


def test_list_is_given_whole() -> None:
    assert changed("spec.evaluation.suites=[]")["evaluation"] == {"suites": []}


@pytest.mark.parametrize("bad", ["spec.maxSteps", "=5", "spec.stop.0=b", "spec.maxSteps.more=1", "spec.a={"])
def test_override_that_cannot_be_made_is_refused_and_quoted(bad: str) -> None:
    with pytest.raises(errors.ManifestError, match="--set"):
        prepare.apply_overrides(TEXT, [bad])


def test_changed_text_is_read_back_as_the_same_manifest() -> None:
    text = "apiVersion: v1\nspec: {rate: '1e-5', template: 'raw', stop: [\"\\n\"]}\n"
    assert load.load_document(prepare.apply_overrides(text, ["spec.x=1"])) == {
        "apiVersion": "v1",
        "spec": {"rate": "1e-5", "template": "raw", "stop": ["\n"], "x": 1},
    }
