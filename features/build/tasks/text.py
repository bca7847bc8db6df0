"""Plain English that ships with Python, and the small byte-pair vocabulary that is learnt from it.

Two corpora: the language reference as `pydoc` prints it, and the docstrings of the standard library. Both belong to
the running Python version; a base that was pretrained under another one has seen slightly other text.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache, partial

import numpy as np

from features.build.families import CLS
from features.build.tasks.symbols import TEXT_VOCABULARY
from features.build.tasks.task import Sequence, Task

# fmt: off
_MODULES = (
    "argparse", "ast", "asyncio.events", "bisect", "calendar", "collections", "concurrent.futures", "configparser",
    "contextlib", "copy", "csv", "datetime", "decimal", "difflib", "doctest", "email.message", "enum", "fractions",
    "functools", "gettext", "heapq", "html.parser", "http.client", "imaplib", "inspect", "io", "ipaddress",
    "itertools", "json", "locale", "logging", "mailbox", "mimetypes", "optparse", "os", "pathlib", "pdb", "pickle",
    "platform", "pprint", "random", "re", "sched", "shelve", "shutil", "smtplib", "socket", "statistics", "string",
    "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "traceback", "typing",
    "unittest.case", "unittest.mock", "urllib.parse", "urllib.request", "uuid", "warnings", "wave", "weakref",
    "xml.dom.minidom", "xml.etree.ElementTree", "zipfile",
)
# fmt: on


def _plain(text: str) -> str:
    """Lower case, words, numbers and common punctuation; all white space as one blank."""
    return re.sub(r"\s+", " ", re.sub(r"[^a-z0-9.,:;()'\"=_-]+", " ", text.lower())).strip()


@cache
def corpus(name: str) -> str:
    """The text of "topics" or "docstrings"."""
    if name == "topics":
        from pydoc_data.topics import topics

        return " ".join(_plain(topics[key]) for key in sorted(topics))
    found = set()
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for member in [module, *vars(module).values()]:
            if getattr(member, "__module__", module_name) != module_name:
                continue
            inner = vars(member).values() if inspect.isclass(member) else ()
            found |= {d for m in (member, *inner) if isinstance(d := getattr(m, "__doc__", None), str)}
    return " ".join(_plain(d) for d in sorted(found) if len(d) > 60)


@cache
def tokenizer():
    """The byte-pair tokenizer, learnt from both corpora: ids 4 and up, below `TEXT_VOCABULARY`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learnt = Tokenizer(models.BPE(unk_token="<mask>"))
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCABULARY, special_tokens=["<pad>", "<cls>", "<sep>", "<mask>"], show_progress=False
    )
    learnt.train_from_iterator([corpus("topics"), corpus("docstrings")], trainer)
    return learnt


@cache
def token_ids(name: str) -> np.ndarray:
    """The corpus as one array of token ids."""
    return np.asarray(tokenizer().encode(corpus(name)).ids)


RESPELT = 12
"""So many of a corpus's most frequent word pieces are exchanged in pairs outside pretraining."""


@cache
def _respelling(name: str) -> np.ndarray:
    """Old id → new id. Without it a base has nothing left to learn from the text that it was pretrained on."""
    frequent = np.bincount(token_ids(name), minlength=TEXT_VOCABULARY).argsort()[::-1][:RESPELT]
    new = np.arange(TEXT_VOCABULARY)
    new[frequent[::2]], new[frequent[1::2]] = frequent[1::2], frequent[::2]
    return new


def draw(name: str, rng: np.random.Generator, split: str) -> Sequence:
    """A window of 13 to 22 tokens. The last fifth of the corpus is for validation, the rest for training."""
    ids = token_ids(name)
    border = int(0.8 * len(ids))
    low, high = (border, len(ids) - 24) if split == "validation" else (0, border - 24)
    start = int(rng.integers(low, high))
    window = ids[start : start + int(rng.integers(13, 23))]
    return Sequence([CLS, *(window if split == "pretraining" else _respelling(name)[window]).tolist()])


def text_task(name: str, paper: str) -> Task:
    """Language modelling on a corpus of plain English, in the place of the manuscript's corpus `paper`."""
    return Task(
        name=name,
        arch="decoder",
        paper=paper,
        draw=partial(draw, name),
        length=23,
        learning_rate=3e-3,
        needs={
            "padding": "windows are padded on the left to unequal lengths",
            "position": "word pieces join to words by adjacency",
            "word order": "as in any text",
            "long range": "little at this window and model size",
        },
    )
