"""The sixty jobs by which sizing is judged, fixed before anything was tuned: shapes of the published set and of what people run today.

Half of them, chosen by a hash of their names, may be looked at while tuning; the other half is for reporting.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"

JOBS: dict[str, str] = {
    # torchvision at 86×86, as published
    "vgg16-200-sgd": "vision.py vgg16 --size 86 --batch 200",
    "vgg16-700-adagrad": "vision.py vgg16 --size 86 --batch 700 --optimizer Adagrad",
    "vgg19-300-adam": "vision.py vgg19 --size 86 --batch 300 --optimizer Adam",
    "resnet101-400-sgd": "vision.py resnet101 --size 86 --batch 400",
    "resnet152-300-adamw": "vision.py resnet152 --size 86 --batch 300 --optimizer AdamW",
    "mobilenet_v2-600-rmsprop": "vision.py mobilenet_v2 --size 86 --batch 600 --optimizer RMSprop",
    "mobilenet_v2-200-adamw": "vision.py mobilenet_v2 --size 86 --batch 200 --optimizer AdamW",
    "mobilenet_v3_small-800-adam": "vision.py mobilenet_v3_small --size 86 --batch 800 --optimizer Adam",
    "mobilenet_v3_large-700-adagrad": "vision.py mobilenet_v3_large --size 86 --batch 700 --optimizer Adagrad",
    "mnasnet1_0-500-sgd": "vision.py mnasnet1_0 --size 86 --batch 500",
    "convnext_tiny-400-adamw": "vision.py convnext_tiny --size 86 --batch 400 --optimizer AdamW",
    "convnext_tiny-800-sgd": "vision.py convnext_tiny --size 86 --batch 800",
    "convnext_base-200-adamw": "vision.py convnext_base --size 86 --batch 200 --optimizer AdamW",
    "regnet_x_400mf-800-sgd": "vision.py regnet_x_400mf --size 86 --batch 800",
    "regnet_y_400mf-600-adam": "vision.py regnet_y_400mf --size 86 --batch 600 --optimizer Adam",
    # language models in float32, as published
    "distilgpt2-40-adamw": "text.py distilgpt2 --batch 40",
    "distilgpt2-70-sgd": "text.py distilgpt2 --batch 70 --optimizer SGD",
    "gpt2-20-adamw": "text.py gpt2 --batch 20",
    "gpt-neo-125m-10-adam": "text.py gpt-neo-125m --batch 10 --optimizer Adam",
    "opt-125m-30-adamw": "text.py opt-125m --batch 30",
    "opt-125m-5-adafactor": "text.py opt-125m --batch 5 --optimizer Adafactor",
    "opt-350m-15-sgd": "text.py opt-350m --batch 15 --optimizer SGD",
    "cerebras-111m-25-adamw": "text.py cerebras-111m --batch 25",
    "t5-small-70-adamw": "text.py t5-small --batch 70 --length 256",
    "t5-base-20-adafactor": "text.py t5-base --batch 20 --length 256 --optimizer Adafactor",
    "deberta-base-15-adamw": "text.py deberta-base --batch 15 --length 256",
    "deberta-base-40-adam": "text.py deberta-base --batch 40 --length 256 --optimizer Adam",
    "qwen3-0.6b-1-adamw": "text.py qwen3-0.6b --batch 1",
    "qwen3-4b-1-sgd": "text.py qwen3-4b --batch 1 --optimizer SGD",
    "pythia-1b-1-adamw": "text.py pythia-1b --batch 1",
    "llama-3.2-3b-1-adamw": "text.py llama-3.2-3b --batch 1",
    "gemma-2-2b-1-adamw": "text.py gemma-2-2b --batch 1",
    # today: mixed precision, checkpointing, adapters, accumulation, generation
    "gpt2-16x1024-bf16": "text.py gpt2 --batch 16 --length 1024 --amp bfloat16 --clip 1",
    "gpt2-medium-16-bf16-checkpointing": "text.py gpt2-medium --batch 16 --amp bfloat16 --checkpointing",
    "llama-1b-4x2048-bf16-checkpointing": "text.py llama-3.2-1b --batch 4 --length 2048 --amp bfloat16 --checkpointing",
    "llama-1b-lora-4x1024": "text.py llama-3.2-1b --batch 4 --length 1024 --dtype bfloat16 --lora 16",
    "llama-3b-lora-checkpointing": "text.py llama-3.2-3b --batch 8 --length 1024 --dtype bfloat16 --lora 16 --checkpointing",
    "qwen3-0.6b-8x1024-pure-bf16": "text.py qwen3-0.6b --batch 8 --length 1024 --dtype bfloat16 --clip 1",
    "pythia-410m-4x4-bf16-clip": "text.py pythia-410m --batch 4 --length 1024 --amp bfloat16 --accumulate 4 --clip 1",
    "roberta-large-32-fp16": "text.py roberta-large --batch 32 --length 256 --amp float16 --clip 1",
    "gpt2-8-generate": "text.py gpt2 --batch 8 --generate 256",
    "trainer-gpt2-bf16-eval": "trainer_text.py gpt2 --batch 8 --bf16 --eval",
    "trainer-t5-small-adafactor": "trainer_text.py t5-small --batch 32 --length 256 --accumulate 2 --optim adafactor",
    "trainer-opt-125m-checkpointing": "trainer_text.py opt-125m --batch 16 --bf16 --checkpointing",
    "accelerate-bert-bf16": "accelerate_text.py bert-base --batch 32",
    "small-gpt-12x1024-fused": "small_gpt.py",
    "small-gpt-8x512-dropout": "small_gpt.py --batch 8 --length 512 --layers 6 --width 512 --accumulate 1 --dropout 0.1",
    "vit_b_16-128-bf16": "vision.py vit_b_16 --batch 128 --amp bfloat16 --optimizer AdamW",
    "vit_b_16-32-fp32": "vision.py vit_b_16 --batch 32 --optimizer AdamW",
    "swin_t-128-bf16": "vision.py swin_t --batch 128 --amp bfloat16 --optimizer AdamW",
    "resnet50-256-fp16-channels-last": "vision.py resnet50 --batch 256 --amp float16 --channels-last",
    "resnet50-128-benchmark": "vision.py resnet50 --batch 128 --benchmark",
    "efficientnet_b0-128-bf16": "vision.py efficientnet_b0 --batch 128 --amp bfloat16 --optimizer AdamW",
    "deeplabv3-16-fp32": "vision.py deeplabv3_resnet50 --batch 16 --size 256",
    "lightning-resnet18-bf16": "lightning_vision.py resnet18 --batch 128",
    "unet-32-bf16-ema": "diffusion.py --batch 32 --amp --ema",
    "unet-16-fp32": "diffusion.py --batch 16",
    "whisper-small-16-bf16": "speech.py small --batch 16 --amp",
    "two-towers-256-fp16": "two_towers.py",
    "lstm-128x128": "recurrent.py",
}


# Written down and sized before any of them was run on a card, and judged once. ``@``: a program that is not ours, in the folder that
# OOMPROOF_PROGRAMS names (karpathy/nanoGPT, pytorch/examples), as it is.
FRESH: dict[str, str] = {
    "densenet121-64-sgd": "vision.py densenet121 --batch 64",
    "efficientnet_v2_s-48-bf16": "vision.py efficientnet_v2_s --batch 48 --amp bfloat16 --optimizer AdamW",
    "shufflenet-512-rmsprop": "vision.py shufflenet_v2_x1_0 --batch 512 --size 160 --optimizer RMSprop",
    "squeezenet-256-adam": "vision.py squeezenet1_1 --batch 256 --optimizer Adam",
    "wide_resnet50-64-channels-last": "vision.py wide_resnet50_2 --batch 64 --channels-last --amp bfloat16",
    "resnext50-96-fp16": "vision.py resnext50_32x4d --batch 96 --amp float16 --optimizer AdamW",
    "alexnet-1024-adagrad": "vision.py alexnet --batch 1024 --optimizer Adagrad",
    "maxvit_t-32-bf16": "vision.py maxvit_t --batch 32 --amp bfloat16 --optimizer AdamW",
    "swin_v2_t-64-fp32": "vision.py swin_v2_t --batch 64 --size 256 --optimizer AdamW",
    "vit_l_16-48-bf16": "vision.py vit_l_16 --batch 48 --amp bfloat16 --optimizer AdamW",
    "convnext_small-64-bf16": "vision.py convnext_small --batch 64 --amp bfloat16 --optimizer AdamW",
    "r3d_18-16x16": "vision.py r3d_18 --batch 16 --frames 16 --size 112",
    "fcn_resnet50-12-fp32": "vision.py fcn_resnet50 --batch 12 --size 320",
    "lraspp-32-bf16": "vision.py lraspp_mobilenet_v3_large --batch 32 --size 384 --amp bfloat16",
    "bert-large-16x384": "text.py bert-large --batch 16 --length 384",
    "bart-base-24x256-bf16": "text.py bart-base --batch 24 --length 256 --amp bfloat16",
    "gpt2-large-8-bf16-clip": "text.py gpt2-large --batch 8 --amp bfloat16 --clip 1",
    "bloom-560m-4-fp32": "text.py bloom-560m --batch 4 --length 512",
    "phi-1.5-2x1024-bf16": "text.py phi-1.5 --batch 2 --length 1024 --dtype bfloat16",
    "mistral-like-4x2048-lora": "text.py mistral-like --batch 4 --length 2048 --dtype bfloat16 --lora 8 --checkpointing",
    "mixtral-like-4x512-bf16": "text.py mixtral-like --batch 4 --length 512 --amp bfloat16",
    "xlm-roberta-base-16x256": "text.py roberta-xlm --batch 16 --length 256 --amp float16",
    "electra-base-48x128": "text.py electra-base --batch 48 --length 128",
    "modernbert-16x1024-bf16": "text.py modernbert --batch 16 --length 1024 --amp bfloat16",
    "qwen2.5-0.5b-8x1024-adafactor": "text.py qwen2.5-0.5b --batch 8 --length 1024 --dtype bfloat16 --optimizer Adafactor",
    "llama-1b-8-generate": "text.py llama-3.2-1b --batch 8 --length 256 --dtype bfloat16 --generate 192",
    "trainer-gpt2-medium-eval": "trainer_text.py gpt2-medium --batch 4 --length 512 --bf16 --eval",
    "accelerate-roberta-large": "accelerate_text.py roberta-large --batch 16",
    "wav2vec2-8x160000": "other_models.py wav2vec2 --batch 8",
    "clip-64-bf16": "other_models.py clip --batch 64 --amp",
    "segformer-8x512": "other_models.py segformer --batch 8",
    "vit-mae-64-bf16": "other_models.py mae --batch 64 --amp",
    "encoder-decoder-64x128": "other_models.py transformer --batch 64",
    "gru-128x200": "other_models.py gru --batch 128",
    "gan-64": "other_models.py gan --batch 64",
    "nanogpt-12x1024": "@nanoGPT/train.py --dataset=shakespeare_char --max_iters=3 --eval_interval=100 --eval_iters=2 --compile=False --log_interval=1",
    "dcgan-256": "@examples/dcgan/main.py --dataset fake --batchSize 256 --niter 1 --dry-run --accel --workers 2",
}


def command(name: str) -> list[str]:
    """The program's file and its arguments."""
    program, *arguments = {**JOBS, **FRESH}[name].split()
    if program.startswith("@"):
        return [os.path.join(os.environ["OOMPROOF_PROGRAMS"], program[1:]), *arguments]
    return [str(PROGRAMS / program), *arguments]


def half(name: str) -> str:
    """``tuning`` or ``reporting``; ``fresh``."""
    if name in FRESH:
        return "fresh"
    ordered = sorted(JOBS, key=lambda job: hashlib.sha256(job.encode()).hexdigest())
    return "tuning" if ordered.index(name) < len(ordered) // 2 else "reporting"


def wanted(only: str) -> list[str]:
    """``only``: a half, or names with commas between; empty for the sixty."""
    names = only.split(",")
    return [
        name
        for name in {**JOBS, **FRESH}
        if half(name) in names or name in names or (not only and name in JOBS)
    ]
