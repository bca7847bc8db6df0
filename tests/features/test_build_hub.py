"""The full profile's way in, without a network: tokenising rows, and what is said when nothing can be fetched."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from features.bench import BenchError
from features.build import hub
from features.build.families import family
from features.build.tasks import task, tasks
from features.build.tasks.task import IGNORED
from features.taxonomy import ARCHITECTURES


@pytest.fixture
def tokenize():
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")


def test_every_task_has_a_source():
    assert set(hub.SOURCES) == {t.name for arch in ARCHITECTURES for t in tasks(arch)}


def test_sentence_pairs_become_padded_tensors_with_labels(tokenize):
    rows = [{"sentence1": "a b c", "sentence2": "a", "label": 1}, {"sentence1": "b", "sentence2": "c", "label": 0}]
    data = hub.encode(iter(rows), tokenize, family("bert"), hub.SOURCES["paraphrase"], 2)
    assert data.inputs["input_ids"].tolist() == [[2, 3, 4, 2], [3, 4, 0, 0]]
    assert data.inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert data.labels.tolist() == [1, 0]


def test_decoder_text_is_padded_on_the_left_and_blank_rows_are_passed_over(tokenize):
    rows = [{"text": "  "}, {"text": "a b c"}, {"text": "b"}]
    data = hub.encode(iter(rows), tokenize, family("gpt2"), hub.SOURCES["topics"], 2)
    assert data.inputs["input_ids"].tolist() == [[2, 3, 4], [0, 0, 3]]
    assert data.inputs["position_ids"].tolist() == [[0, 1, 2], [0, 0, 0]]
    assert torch.equal(data.labels, torch.tensor([[2, 3, 4], [IGNORED, IGNORED, 3]]))


def test_too_few_rows_are_refused_by_name(tokenize):
    with pytest.raises(BenchError, match="wikitext"):
        hub.encode(iter([{"text": "a"}]), tokenize, family("gpt2"), hub.SOURCES["topics"], 2)


def test_without_a_hub_the_error_names_the_checkpoint_and_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BenchError, match=r"bert-base-uncased.*--profile embedded"):
        hub.checkpoint(family("bert"), 0)


def test_without_the_datasets_package_the_error_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(BenchError, match="pip install datasets"):
        hub.examples.__wrapped__(family("bert"), task("sentiment"), "train", 10)
