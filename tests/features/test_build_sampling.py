from collections import Counter

import pytest

from features.build.families import family
from features.build.sampling import mutants, pairs, rounds
from features.build.variants import BATCH_SIZES, setting
from features.inject import applicable
from features.taxonomy import categories, operators


def test_twenty_encoder_and_twelve_decoder_pairs():
    assert Counter(f.arch for f, _ in pairs()) == {"encoder": 20, "decoder": 12}


@pytest.mark.parametrize("name", ["bert", "distilgpt2"])
def test_every_applicable_setting_of_every_operator_is_sampled_once_per_choice_of_layers(name):
    chosen = family(name)
    found = [m for c in categories(chosen.arch) for m in mutants(chosen, "some task", c)]
    assert len(set(found)) == len(found)
    wanted = {
        (o.code, v)
        for o in operators(chosen.arch)
        for v in o.settings
        if applicable(o.code, chosen.model_type, v) is None
    }
    assert {(m.code, m.value) for m in found} == wanted
    per_setting = Counter((m.code, m.value) for m in found if m.acts_by_layer)
    assert set(per_setting.values()) == {4 if chosen.layers > 2 else 3}


def test_a_prefix_meets_every_root_cause_before_any_a_second_time():
    for name in ("roberta", "gpt2"):
        chosen = family(name)
        for category in categories(chosen.arch):
            found = mutants(chosen, "some task", category)
            causes = len({m.root_cause for m in found})
            assert len({m.root_cause for m in found[:causes]}) == causes


def test_first_round_over_all_pairs_starts_at_different_root_causes():
    firsts = Counter(next(rounds(f, t))["ffn"][0].root_cause for f, t in pairs())
    assert len(firsts) >= 4


def test_a_category_that_is_used_up_starts_again_under_other_settings():
    chosen = family("gpt2")
    due = [of_round["variant"] for of_round in rounds(chosen, "some task", laps=3) if "variant" in of_round]
    count = len(mutants(chosen, "some task", "variant"))
    assert len(due) == 3 * count
    assert [fault for fault, _ in due] == 3 * mutants(chosen, "some task", "variant")
    assert len(set(due)) == len(due)
    settings = [{number for fault, number in due if fault == m} for m in mutants(chosen, "some task", "variant")]
    assert all(len(numbers) == 3 for numbers in settings)


def test_settings_stay_in_their_ranges_and_repeat():
    drawn = [setting("bert/duplicate", n) for n in range(1, 60)]
    assert drawn == [setting("bert/duplicate", n) for n in range(1, 60)]
    assert all(0.9 <= s.rate_factor <= 1.15 and 0.05 <= s.warmup <= 0.15 for s in drawn)
    assert {s.batch_size for s in drawn} == set(BATCH_SIZES)
    assert len({s.shift for s in drawn}) == len(drawn)
