"""Speech: a Conformer with CTC on recordings of many lengths, a vocoder with discriminators of several periods, masked units over waveforms."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = args.batch


class Conformer(nn.Module):
    def __init__(self, width, heads, kernel=31) -> None:
        super().__init__()
        self.heads = heads
        self.halves = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width), nn.Dropout(0.1)
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.before, self.into = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.middle, self.back = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.last = nn.LayerNorm(width)

    def forward(self, x, mask):
        x = x + 0.5 * self.halves[0](x)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=0.1)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = F.glu(self.into(self.before(x).transpose(1, 2)), 1)
        x = x + self.back(F.silu(self.middle(self.depth(h)))).transpose(1, 2)
        return self.last(x + 0.5 * self.halves[1](x))


class Recognizer(nn.Module):
    def __init__(self, width=256, layers=12, vocabulary=512) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
        )
        self.into = nn.Linear(width * 19, width)
        self.layers = nn.ModuleList(Conformer(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x, lengths):
        x = self.front(x[:, None])
        x = self.into(x.transpose(1, 2).flatten(2))
        lengths = ((lengths - 1) // 2 - 1) // 2
        mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x).log_softmax(-1), lengths


class Clips(torch.utils.data.Dataset):
    """Recordings of 3 to 15 seconds."""

    def __init__(self, count) -> None:
        seconds = torch.rand(count, generator=torch.Generator().manual_seed(5)) * 12 + 3
        self.frames = (seconds * 100).int().tolist()

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index):
        return torch.randn(self.frames[index], 80)


def conformer():
    """An epoch of 60 batches, each padded to its longest recording."""
    model = Recognizer().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, betas=(0.9, 0.98))

    def collate(rows):
        lengths = torch.tensor([len(row) for row in rows])
        sound = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        targets = lengths // 16
        return sound, lengths, torch.randint(1, 512, (len(rows), int(targets.max()))), targets

    loader = torch.utils.data.DataLoader(
        Clips(60 * BATCH), BATCH, shuffle=True, collate_fn=collate, drop_last=True
    )
    for step, (sound, lengths, words, counts) in enumerate(loader):
        if step == args.steps:
            break
        with torch.autocast("cuda", torch.bfloat16):
            scores, frames = model(sound.cuda(), lengths.cuda())
        loss = F.ctc_loss(
            scores.float().transpose(0, 1), words.cuda(), frames, counts.cuda(), zero_infinity=True
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        yield step, loss


class Residual(nn.Module):
    def __init__(self, width, kernel) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, kernel, padding=kernel // 2 * wide, dilation=wide))
            for wide in (1, 3, 5)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    def __init__(self, width=256) -> None:
        super().__init__()
        self.first, self.up, self.mix = (
            weight_norm(nn.Conv1d(80, width, 7, padding=3)),
            nn.ModuleList(),
            nn.ModuleList(),
        )
        for rate in (8, 8, 2, 2):
            self.up.append(weight_norm(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2)))
            width //= 2
            self.mix.append(nn.ModuleList(Residual(width, kernel) for kernel in (3, 7, 11)))
        self.last = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x):
        x = self.first(x)
        for up, mix in zip(self.up, self.mix, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(part(x) for part in mix) / len(mix)
        return self.last(F.leaky_relu(x)).tanh()


class Period(nn.Module):
    def __init__(self, period) -> None:
        super().__init__()
        self.period, layers, inner = period, [], 1
        for outer in (32, 128, 512, 1024):
            layers.append(weight_norm(nn.Conv2d(inner, outer, (5, 1), (3, 1), (2, 0))))
            inner = outer
        self.layers, self.last = nn.ModuleList(layers), weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        x, kept = F.pad(x, (0, -x.shape[-1] % self.period), mode="reflect"), []
        x = x.unflatten(-1, (-1, self.period))
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            kept.append(x)
        return self.last(x), kept


def vocoder():
    """HiFi-GAN-like: a generator of transposed convolutions against five discriminators, with losses over features and spectra."""
    generator, judges = Vocoder().cuda(), nn.ModuleList(Period(n) for n in (2, 3, 5, 7, 11)).cuda()
    first, second = (
        torch.optim.AdamW(net.parameters(), 2e-4, betas=(0.8, 0.99)) for net in (generator, judges)
    )
    window, mel = torch.hann_window(1024, device="cuda"), torch.rand(80, 513, device="cuda")

    def spectrum(sound):
        return (
            (mel @ torch.stft(sound[:, 0], 1024, 256, window=window, return_complex=True).abs())
            .clamp_min(1e-5)
            .log()
        )

    for step in range(args.steps):
        real, frames = torch.rand(BATCH, 1, 8192 * 4).cuda(), torch.randn(BATCH, 80, 32 * 4).cuda()
        made = generator(frames)
        loss = sum(
            (1 - judge(real)[0]).pow(2).mean() + judge(made.detach())[0].pow(2).mean() for judge in judges
        )
        second.zero_grad()
        loss.backward()
        second.step()
        loss = 45 * F.l1_loss(spectrum(made), spectrum(real))
        for judge in judges:
            score, kept = judge(made)
            with torch.no_grad():
                wanted = judge(real)[1]
            loss = (
                loss
                + (1 - score).pow(2).mean()
                + 2 * sum(F.l1_loss(a, b) for a, b in zip(kept, wanted, strict=True))
            )
        first.zero_grad()
        loss.backward()
        first.step()
        yield step, loss


def units():
    """HuBERT-like: masked stretches of sound, their units told by a product with learned codes."""
    import transformers as hf

    config = hf.HubertConfig(
        mask_time_prob=0.0, layerdrop=0.0, feat_extract_norm="layer", do_stable_layer_norm=True
    )
    body, head = hf.HubertModel(config).cuda().train(), nn.Linear(768, 256, bias=False).cuda()
    codes = nn.Parameter(torch.randn(504, 256).cuda())
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters(), codes], 5e-4)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        with torch.autocast("cuda", torch.float16):
            hidden = body(torch.randn(BATCH, 160000).cuda()).last_hidden_state
            near = F.normalize(head(hidden).float(), dim=-1) @ F.normalize(codes, dim=-1).T / 0.1
            loss = F.cross_entropy(near.flatten(0, 1), torch.randint(0, 504, near.shape[:2]).cuda().flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(body.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield step, loss


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)
