"""What a result was made from stands beside it, and all of it once more at the root of the results."""

import json

from experiments.engine.manifest import keep, manifest


def test_root_lists_every_result(tmp_path, toy_bench):
    record = manifest([toy_bench], [toy_bench.fingerprint()], seed=3)
    keep(record, tmp_path / "one" / "encoder" / "manifest.json", tmp_path)
    keep(record | {"git": "other"}, tmp_path / "rules" / "toy.json", tmp_path)
    (tmp_path / "rules" / "noise.json").write_text("{}")
    keep(record, tmp_path / "one" / "encoder" / "manifest.json", tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    keep(record, tmp_path / "comparison" / "encoder" / "manifest.json", tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == before, (
        "a comparison that git doesn't keep changes no kept file"
    )
    root = json.loads(before)
    assert list(root) == ["one/encoder/manifest.json", "rules/toy.json"]
    assert root["rules/toy.json"]["git"] == "other"
    found = root["one/encoder/manifest.json"]
    assert found["benches"][0]["fingerprint"] == toy_bench.fingerprint()
    assert found["settings"] == {"seed": 3}
    assert {"git", "code", "python", "packages", "machine", "command"} <= set(found)
