"""Tiny models of every measured family, and batches for them."""

import pytest
import torch
import transformers as hf
from torch import nn

VOCABULARY, WIDTH, HEADS, POSITIONS = 50, 16, 4, 32
FAMILIES = ("bert", "roberta", "distilbert", "albert", "gpt2", "gpt_neo", "llama", "torch", "torch_pre_norm")
DECODERS = ("gpt2", "gpt_neo", "llama")


class TorchClassifier(nn.Module):
    """A classifier around nn.TransformerEncoder that is called like a model of transformers."""

    def __init__(self, layers, pre_norm, dropout, classes=3):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout, batch_first=True, norm_first=pre_norm)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=not pre_norm)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        x = self.encoder(x, src_key_padding_mask=None if attention_mask is None else attention_mask == 0)
        output = {"logits": self.head(x[:, 0])}
        return output if labels is None else output | {"loss": nn.functional.cross_entropy(output["logits"], labels)}


def _build(family, attention="eager", layers=3, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": WIDTH,  # as wide as the model, so that shapes alone don't tell an FFN
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,
        "attn_implementation": attention,
    }
    bert = shared | {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "num_labels": 3}
    match family:
        case "bert":
            return hf.BertForSequenceClassification(hf.BertConfig(**bert))
        case "roberta":
            return hf.RobertaForSequenceClassification(hf.RobertaConfig(**bert, pad_token_id=1))
        case "albert":
            bert["classifier_dropout_prob"] = dropout
            return hf.AlbertForSequenceClassification(hf.AlbertConfig(**bert, embedding_size=8, **ends))
        case "distilbert":
            config = hf.DistilBertConfig(
                vocab_size=VOCABULARY,
                dim=WIDTH,
                hidden_dim=24,
                n_layers=layers,
                n_heads=HEADS,
                max_position_embeddings=POSITIONS,
                initializer_range=0.3,
                dropout=dropout,
                attention_dropout=dropout,
                seq_classif_dropout=dropout,
                num_labels=3,
                attn_implementation=attention,
            )
            return hf.DistilBertForSequenceClassification(config)
        case "gpt2":
            config = hf.GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=WIDTH,
                n_layer=layers,
                n_head=HEADS,
                n_inner=3 * WIDTH,  # as wide as a fused projection
                n_positions=POSITIONS,
                initializer_range=0.3,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
                attn_implementation=attention,
                **ends,
            )
            return hf.GPT2LMHeadModel(config)
        case "gpt_neo":
            config = hf.GPTNeoConfig(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                num_layers=layers,
                num_heads=HEADS,
                attention_types=[[["global", "local", "global"], layers // 3]],
                window_size=4,
                max_position_embeddings=POSITIONS,
                initializer_range=0.3,
                resid_dropout=dropout,
                embed_dropout=dropout,
                attention_dropout=dropout,
                attn_implementation="eager",
                **ends,
            )
            return hf.GPTNeoForCausalLM(config)
        case "llama":
            config = hf.LlamaConfig(**shared, num_key_value_heads=2, attention_dropout=dropout, **ends)
            return hf.LlamaForCausalLM(config)
        case "torch" | "torch_pre_norm":
            return TorchClassifier(layers, family == "torch_pre_norm", dropout)


def _draw(family, rows=6, length=12, seed=0):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (rows, length), generator=rng)
    lengths = torch.arange(rows) % 3 * 3
    mask = (torch.arange(length) < (length - lengths)[:, None]).long()
    ids = torch.where(mask.bool(), ids, 1 if family == "roberta" else 0)
    classes = torch.randint(0, 3, (rows,), generator=rng)
    labels = torch.where(mask.bool(), ids, -100) if family in DECODERS else classes
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.fixture(params=FAMILIES)
def family(request):
    """Every measured family in turn."""
    return request.param


@pytest.fixture(scope="session")
def build():
    """`build(family, attention="eager", layers=3, dropout=0.0, seed=0)`: a tiny model."""
    return _build


@pytest.fixture(scope="session")
def draw():
    """`draw(family, rows=6, length=12, seed=0)`: a batch padded on the right, with labels."""
    return _draw


@pytest.fixture(scope="session")
def train():
    """`train(model, run, batches, epochs)`: a training loop with AdamW; the log's rows and the parameters follow."""

    def loop(model, run, batches, epochs=3, lr=1e-3, figures=None):
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        model.train()
        for _ in range(epochs):
            for batch in batches:
                loss = model(**batch)["loss"]
                loss.backward()
                optimizer.step()
                if run is not None:
                    run.step(loss, batch, optimizer)
                optimizer.zero_grad()
            if run is not None:
                run.epoch(**(figures or {"val_loss": 1.0, "val_accuracy": 0.5, "val_ece": 0.1}))

    return loop
