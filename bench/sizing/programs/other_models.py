"""Trains what is neither a classifier of images nor a language model, on random data."""

import argparse
import contextlib
from itertools import pairwise

import torch
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = args.batch


class Translation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, 512)
        self.body = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.head = nn.Linear(512, 20000)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.body(self.words(source), self.words(target), tgt_mask=mask))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30000, 300)
        self.body = nn.GRU(300, 512, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.head = nn.Linear(1024, 40)

    def forward(self, words):
        return self.head(self.body(self.words(words))[0])


class Pair(nn.Module):
    """A generator and its judge."""

    def __init__(self) -> None:
        super().__init__()
        widths = [512, 256, 128, 64]
        layers = [nn.ConvTranspose2d(100, widths[0], 4, 1, 0), nn.BatchNorm2d(widths[0]), nn.ReLU(True)]
        for before, after in pairwise(widths):
            layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU(True)]
        self.generator = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())
        layers = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
        for before, after in ((64, 128), (128, 256), (256, 512)):
            layers += [
                nn.Conv2d(before, after, 4, 2, 1),
                nn.BatchNorm2d(after),
                nn.LeakyReLU(0.2, inplace=True),
            ]
        self.judge = nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0))


def images(size):
    return torch.randn(BATCH, 3, size, size).cuda()


def cross_entropy(logits, count):
    return nn.functional.cross_entropy(
        logits.flatten(0, -2), torch.randint(0, count, logits.shape[:-1]).cuda().flatten()
    )


def wav2vec2():
    model = hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(vocab_size=32, ctc_loss_reduction="mean"))
    return (
        model,
        lambda: (
            model(torch.randn(BATCH, 160000).cuda(), labels=torch.randint(1, 31, (BATCH, 60)).cuda()).loss
        ),
    )


def clip():
    model = hf.CLIPModel(hf.CLIPConfig())

    def loss():
        words = torch.randint(1, 49000, (BATCH, 77)).cuda()
        return model(input_ids=words, pixel_values=images(224), return_loss=True).loss

    return model, loss


def segformer():
    model = hf.SegformerForSemanticSegmentation(hf.SegformerConfig(num_labels=20))
    return model, lambda: model(images(512), labels=torch.randint(0, 20, (BATCH, 512, 512)).cuda()).loss


def mae():
    model = hf.ViTMAEForPreTraining(hf.ViTMAEConfig())
    return model, lambda: model(images(224)).loss


def transformer():
    model = Translation()

    def loss():
        source, target = (torch.randint(0, 20000, (BATCH, 128)).cuda() for _ in range(2))
        return cross_entropy(model(source, target), 20000)

    return model, loss


def gru():
    model = Tagger()
    return model, lambda: cross_entropy(model(torch.randint(0, 30000, (BATCH, 200)).cuda()), 40)


def gan():
    model = Pair()

    def loss():
        made = model.generator(torch.randn(BATCH, 100, 1, 1).cuda())
        real = model.judge(images(64))
        return nn.functional.softplus(model.judge(made)).mean() + nn.functional.softplus(-real).mean()

    return model, loss


torch.manual_seed(0)
model, loss_of = globals()[args.model]()
model = model.cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(args.steps):
    mixed = torch.autocast("cuda", torch.bfloat16) if args.amp else contextlib.nullcontext()
    with mixed:
        loss = loss_of()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f}", flush=True)
