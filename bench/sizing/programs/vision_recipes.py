"""Images with a recipe around the network: two passes a step (SAM), a teacher that is an average, two views with LARS, auxiliary heads, masks."""

import argparse
import contextlib
import copy

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--amp", choices=("bfloat16", "float16"))
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH, SIZE = args.batch, args.size


def mixed():
    return torch.autocast("cuda", getattr(torch, args.amp)) if args.amp else contextlib.nullcontext()


def images():
    return torch.randn(BATCH, 3, SIZE, SIZE, pin_memory=torch.cuda.is_available()).cuda(non_blocking=True)


def labels(count):
    return torch.randint(0, count, (BATCH,)).cuda()


class SAM:
    """Sharpness-aware minimisation: climbs to the worst point near by, takes the gradient there, steps from where it was."""

    def __init__(self, parameters, base, rho=0.05) -> None:
        self.parameters, self.base, self.rho = list(parameters), base, rho

    @torch.no_grad()
    def climb(self):
        grads = [p.grad for p in self.parameters]
        scale = self.rho / (torch.norm(torch.stack([g.norm() for g in grads])) + 1e-12)
        self.moved = [g * scale for g in grads]
        torch._foreach_add_(self.parameters, self.moved)
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        torch._foreach_sub_(self.parameters, self.moved)
        self.moved = None
        self.base.step()
        self.base.zero_grad()


class LARS(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.9, decay=1e-6, trust=0.001) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay, "trust": trust})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                change = p.grad
                if p.ndim > 1:
                    change = change.add(p, alpha=group["decay"])
                    length, norm = p.norm(), change.norm()
                    ratio = torch.where((length > 0) & (norm > 0), group["trust"] * length / norm, 1.0)
                    change = change.mul(ratio)
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                state["mu"].mul_(group["momentum"]).add_(change)
                p.add_(state["mu"], alpha=-group["lr"])


def sam():
    model = torchvision.models.regnet_y_3_2gf(weights=None).cuda().train()
    optimizer = SAM(model.parameters(), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True))
    for step in range(args.steps):
        x, y = images(), labels(1000)
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        optimizer.climb()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.descend()
        yield step, loss


def simclr():
    model = torchvision.models.resnet34(weights=None)
    model.fc = nn.Sequential(
        nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)
    )
    model = model.cuda().train()
    optimizer = LARS(model.parameters(), 0.3)
    for step in range(args.steps):
        with mixed():
            z = F.normalize(model(torch.cat([images(), images()])).float(), dim=1)
            similar = z @ z.T / 0.5
            similar.fill_diagonal_(float("-inf"))
            partner = torch.arange(2 * BATCH, device="cuda").roll(BATCH)
            loss = F.cross_entropy(similar, partner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def teacher():
    student = (
        torchvision.models.resnet50(weights=None, num_classes=100)
        .cuda()
        .to(memory_format=torch.channels_last)
    )
    average = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3, foreach=True)
    for step in range(args.steps):
        x, unlabelled = (images().contiguous(memory_format=torch.channels_last) for _ in range(2))
        with mixed():
            with torch.no_grad():
                wanted = average(unlabelled).softmax(-1)
            supervised = F.cross_entropy(student(x), labels(100))
            loss = supervised + F.mse_loss(student(unlabelled).softmax(-1), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average.update_parameters(student)
        yield step, loss


def inception():
    model = torchvision.models.inception_v3(weights=None, init_weights=False).cuda().train()
    optimizer = torch.optim.RMSprop(model.parameters(), 0.045, alpha=0.9, eps=1.0, momentum=0.9)
    for step in range(args.steps):
        y = labels(1000)
        out = model(images())
        loss = F.cross_entropy(out.logits, y) + 0.4 * F.cross_entropy(out.aux_logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def double(inner, outer):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
    )  # fmt: skip


class ClassicUNet(nn.Module):
    def __init__(self, classes) -> None:
        super().__init__()
        widths = [64, 128, 256, 512]
        self.first, self.pool = double(3, widths[0]), nn.MaxPool2d(2)
        self.down = nn.ModuleList(double(w, 2 * w) for w in widths)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.up = nn.ModuleList(double(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(self.pool(kept[-1])))
        x = kept.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        return self.head(x)


def unet():
    model = ClassicUNet(4).cuda().train()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        masks = torch.randint(0, 4, (BATCH, SIZE, SIZE)).cuda()
        with torch.autocast("cuda", torch.float16):
            logits = model(images())
            loss = F.cross_entropy(logits, masks)
            chances, truth = F.softmax(logits, 1).float(), F.one_hot(masks, 4).permute(0, 3, 1, 2).float()
            overlap = (chances * truth).sum((2, 3))
            loss = loss + 1 - (2 * overlap / (chances.sum((2, 3)) + truth.sum((2, 3)) + 1e-6)).mean()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield step, loss


def finetune():
    """The backbone is frozen but for its last stage; evaluation by a copy at a larger batch."""
    model = torchvision.models.efficientnet_b4(weights=None)
    model.requires_grad_(False)
    for part in (model.features[6], model.features[7], model.features[8]):
        part.requires_grad_(True)
    model.classifier[1] = nn.Linear(model.classifier[1].in_features, 37)
    model = model.cuda().train()
    optimizer = torch.optim.NAdam([p for p in model.parameters() if p.requires_grad], 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(args.steps):
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(images()), labels(37)) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield step, loss
    judge = copy.deepcopy(model).eval()
    with torch.inference_mode(), torch.autocast("cuda", torch.float16):
        judge(torch.cat([images(), images()])).argmax(1)


torch.manual_seed(0)
for step, loss in globals()[args.recipe]():
    print(f"step {step} loss {loss.item():.3f}", flush=True)
