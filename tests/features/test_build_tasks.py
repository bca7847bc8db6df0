import numpy as np
import pytest
import torch

from features.build.base import _relations
from features.build.families import CLS, DECODER_VOCABULARY, ENCODER_VOCABULARY, PAD, SEP
from features.build.tasks import task, tasks
from features.build.tasks.symbols import CUES, NAMES
from features.build.tasks.task import IGNORED, examples
from features.build.tasks.words import CONTINUED, MATCHED, UNMATCHED
from features.taxonomy import ARCHITECTURES

ALL = [t for arch in ARCHITECTURES for t in tasks(arch)]


def test_five_encoder_and_four_decoder_tasks_each_with_a_full_card():
    assert (len(tasks("encoder")), len(tasks("decoder"))) == (5, 4)
    assert all(set(t.needs) == {"padding", "position", "word order", "long range"} for t in ALL)


@pytest.mark.parametrize("chosen", ALL, ids=lambda t: t.name)
def test_sequences_fit_their_length_and_vocabulary_and_differ_in_length(chosen):
    data = examples(chosen, "train", 200, segments=True)
    lengths = data.inputs["attention_mask"].sum(1)
    assert lengths.min() < lengths.max() <= chosen.length
    limit = ENCODER_VOCABULARY if chosen.arch == "encoder" else DECODER_VOCABULARY
    assert data.inputs["input_ids"].max() < limit
    assert torch.equal(data.inputs["input_ids"] != PAD, data.inputs["attention_mask"].bool())


@pytest.mark.parametrize("chosen", tasks("encoder"), ids=lambda t: t.name)
def test_encoder_classes_are_balanced_and_padding_is_on_the_right(chosen):
    data = examples(chosen, "validation", 600)
    assert 0.42 < data.labels.float().mean() < 0.58
    mask = data.inputs["attention_mask"]
    assert torch.equal(mask, mask.sort(dim=1, descending=True).values)
    assert (data.inputs["input_ids"][:, 0] == CLS).all()


@pytest.mark.parametrize("chosen", tasks("decoder"), ids=lambda t: t.name)
def test_decoder_padding_is_on_the_left_with_positions_from_zero_and_no_loss(chosen):
    data = examples(chosen, "train", 100)
    mask = data.inputs["attention_mask"]
    assert torch.equal(mask, mask.sort(dim=1).values)
    first = mask.argmax(1)
    assert (data.inputs["position_ids"][torch.arange(100), first] == 0).all()
    assert (data.labels[mask == 0] == IGNORED).all()
    assert torch.equal(data.labels[mask == 1], data.inputs["input_ids"][mask == 1])


def test_splits_differ_and_repeat():
    train, again = (examples.__wrapped__(task("duplicate"), "train", 50) for _ in range(2))
    other = examples(task("duplicate"), "validation", 50)
    assert torch.equal(train.inputs["input_ids"], again.inputs["input_ids"])
    assert not torch.equal(train.inputs["input_ids"], other.inputs["input_ids"])


def test_the_last_word_of_recall_is_the_first_named_of_the_class_its_cue_asks_for():
    asks_for = dict(zip(CUES, NAMES, strict=True))
    for row in examples(task("recall"), "validation", 100).inputs["input_ids"].tolist():
        assert row[-1] == next(w for w in row if w in asks_for[row[-2]])


def test_graded_entailment_lets_at_most_one_word_be_missing():
    data = examples(task("entailment"), "train", 300)
    for row, label in zip(data.inputs["input_ids"].tolist(), data.labels.tolist(), strict=True):
        middle = row.index(SEP)
        end = row.index(SEP, middle + 1)
        premise, hypothesis = {w // 2 for w in row[1:middle]}, row[middle + 1 : end]
        assert label == (sum(w // 2 not in premise for w in hypothesis) <= 1)


def test_relation_tags_by_hand():
    # [CLS] a b c [SEP] a' b' x' [SEP]: a is matched and continued, b matched only, c and x' unmatched.
    a, b, c, x = 38, 40, 42, 44
    ids = torch.tensor([[CLS, a, b, c, SEP, a + 1, b + 1, x + 1, SEP]])
    wanted = [IGNORED, CONTINUED, MATCHED, UNMATCHED, IGNORED, CONTINUED, MATCHED, UNMATCHED, IGNORED]
    assert _relations(ids).tolist() == [wanted]


def test_a_batch_is_cut_to_its_longest_sequence():
    data = examples(task("sentiment"), "train", 200)
    rows = np.flatnonzero(data.inputs["attention_mask"].sum(1).numpy() <= 10)[:4]
    assert data.take(torch.as_tensor(rows))["input_ids"].shape[1] <= 10
