"""Sound: a U-Net over samples that separates sources, with losses over spectra; a classifier of spectrograms made on the card."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("network", choices=("separate", "classify"))
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--samples", type=int, default=131072)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class Separator(nn.Module):
    def __init__(self, width=64, depth=5, sources=4) -> None:
        super().__init__()
        self.down, self.up, inner = nn.ModuleList(), nn.ModuleList(), 1
        outer, last = width, sources
        for _ in range(depth):
            self.down.append(
                nn.Sequential(
                    nn.Conv1d(inner, outer, 8, 4, 2), nn.ReLU(), nn.Conv1d(outer, 2 * outer, 1), nn.GLU(1)
                )
            )
            self.up.insert(
                0,
                nn.Sequential(
                    nn.Conv1d(outer, 2 * outer, 3, padding=1),
                    nn.GLU(1),
                    nn.ConvTranspose1d(outer, last, 8, 4, 2),
                ),
            )
            last, inner, outer = outer, outer, 2 * outer
        self.middle = nn.LSTM(inner, inner, 2, bidirectional=True)
        self.join = nn.Linear(2 * inner, inner)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        x = self.join(self.middle(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for index, block in enumerate(self.up):
            x = block(x + kept.pop())
            if index < len(self.up) - 1:
                x = F.relu(x)
        return x


def spectrum(x, size):
    window = torch.hann_window(size, device=x.device)
    return torch.stft(x.flatten(0, -2), size, size // 4, window=window, return_complex=True).abs()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers, inner = [], 1
        for outer in (64, 128, 256, 512):
            layers += [
                nn.Conv2d(inner, outer, 3, padding=1, bias=False),
                nn.BatchNorm2d(outer),
                nn.ReLU(True),
            ]
            layers += [
                nn.Conv2d(outer, outer, 3, padding=1, bias=False),
                nn.BatchNorm2d(outer),
                nn.ReLU(True),
                nn.AvgPool2d(2),
            ]
            inner = outer
        self.body, self.head = nn.Sequential(*layers), nn.Linear(512, 527)
        self.register_buffer("mel", torch.rand(513, 64))

    def forward(self, x):
        spectrogram = spectrum(x, 1024).pow(2).transpose(1, 2) @ self.mel
        return self.head(self.body(spectrogram.clamp_min(1e-10).log()[:, None]).mean((2, 3)))


torch.manual_seed(0)
model = (Separator() if args.network == "separate" else Classifier()).cuda().train()
optimizer = torch.optim.Adam(model.parameters(), 3e-4, amsgrad=args.network == "classify")
for step in range(args.steps):
    if args.network == "separate":
        parts = torch.randn(args.batch, 4, args.samples).cuda()
        found = model(parts.sum(1, keepdim=True))
        loss = F.l1_loss(found, parts)
        for size in (512, 1024, 2048):
            a, b = spectrum(found, size), spectrum(parts, size)
            loss = loss + (a - b).norm() / b.norm() + F.l1_loss((a + 1e-5).log(), (b + 1e-5).log())
    else:
        sound = torch.randn(args.batch, args.samples).cuda()
        loss = F.binary_cross_entropy_with_logits(
            model(sound), (torch.rand(args.batch, 527) > 0.99).float().cuda()
        )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}", flush=True)
