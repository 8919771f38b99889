"""The sixty jobs by which sizing is judged, fixed before anything was tuned: shapes of the published set and of what people run today.

Half of them, chosen by a hash of their names, may be looked at while tuning; the other half is for reporting.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
OTHERS = os.path.abspath(os.environ.get("OOMPROOF_PROGRAMS", "."))

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

# A second set, likewise written down and sized before any of it was run on a card: training recipes rather than networks, and
# eight recurrent jobs, since cuDNN's recurrent kernels had been followed from two.
FRESH2: dict[str, str] = {
    "lstm-1x650-words": "recurrent_layers.py LSTM --vocabulary 10000 --input 650 --hidden 650 --batch 128 --length 256 --outputs 10000 --optimizer SGD",
    "lstm-3x512-both-ways": "recurrent_layers.py LSTM --input 80 --hidden 512 --layers 3 --both-ways --batch-first --batch 64 --length 800 --dropout 0.2",
    "lstm-2x2048-projection": "recurrent_layers.py LSTM --input 240 --hidden 2048 --projection 512 --layers 2 --batch 64 --length 300 --outputs 4000",
    "lstm-2x128-forecast": "recurrent_layers.py LSTM --input 16 --hidden 128 --layers 2 --batch-first --last-only --batch 4096 --length 168 --optimizer AdamW",
    "lstm-2x1024-both-ways-bf16": "recurrent_layers.py LSTM --input 512 --hidden 1024 --layers 2 --both-ways --batch-first --batch 64 --length 512 --amp bfloat16",
    "gru-1x2048": "recurrent_layers.py GRU --input 1024 --hidden 2048 --batch 64 --length 400 --outputs 256",
    "gru-4x256-fp16": "recurrent_layers.py GRU --input 64 --hidden 256 --layers 4 --batch-first --batch 1024 --length 256 --dropout 0.1 --amp float16",
    "gru-2x768-packed": "recurrent_layers.py GRU --vocabulary 30000 --input 300 --hidden 768 --layers 2 --both-ways --packed --batch-first --batch 128 --length 300 --outputs 20",
    "seq2seq-attention-128x50": "attention_seq2seq.py",
    "retinanet-8x512": "detection.py retinanet_resnet50_fpn --batch 8",
    "fcos-8x640-bf16": "detection.py fcos_resnet50_fpn --batch 8 --size 640 --amp",
    "r2plus1d_18-8x16-fp16": "vision.py r2plus1d_18 --batch 8 --frames 16 --size 112 --amp float16",
    "mvit_v2_s-8x16-bf16": "vision.py mvit_v2_s --batch 8 --frames 16 --amp bfloat16 --optimizer AdamW",
    "regnet_y_3_2gf-64-sam": "vision_recipes.py sam --batch 64",
    "simclr-resnet34-128-lars": "vision_recipes.py simclr --batch 128 --amp bfloat16",
    "mean-teacher-resnet50-64": "vision_recipes.py teacher --batch 64 --amp bfloat16",
    "inception_v3-64-aux": "vision_recipes.py inception --batch 64 --size 299",
    "classic-unet-8x512-fp16": "vision_recipes.py unet --batch 8 --size 512",
    "efficientnet_b4-48x380-frozen": "vision_recipes.py finetune --batch 48 --size 380",
    "dpo-360m-4x512": "language_recipes.py dpo --batch 4",
    "distillation-32x256-fp16": "language_recipes.py distillation --batch 32 --length 256",
    "qwen2.5-7b-adapters-2x2048": "language_recipes.py adapters --batch 2 --length 2048",
    "experts-8x1024-capacity": "language_recipes.py experts --batch 8 --length 1024",
    "olmoe-like-4x512": "language_recipes.py olmoe --batch 4",
    "mamba-8x128-slow-path": "language_recipes.py mamba --batch 8 --length 128",
    "llama-muon-8x1024": "language_recipes.py muon --batch 8 --length 1024",
    "roberta-mlm-padded-24": "language_recipes.py padding --batch 24",
    "trainer-tags-16x2-eval": "trainer_recipes.py tags --batch 16 --length 384",
    "trainer-t5-generates": "trainer_recipes.py translation --batch 16",
    "trainer-dinov2-workers": "trainer_recipes.py images --batch 96",
    "lightning-deeplab-16": "lightning_segmentation.py",
    "latent-unet-16-ema": "latent_diffusion.py unet --batch 16",
    "dit-32-checkpointing": "latent_diffusion.py dit --batch 32 --checkpointing",
    "separator-8x131072-stft": "waveforms.py separate",
    "sound-classes-64": "waveforms.py classify --batch 64 --samples 160000",
    "pointnet-32x4096": "points_and_graphs.py pointnet --points 4096",
    "dgcnn-16x2048": "points_and_graphs.py dgcnn --batch 16",
    "graph-attention-2m-edges": "points_and_graphs.py graph",
    "wgan-gp-128": "other_loops.py critic --batch 128",
    "ppo-256-games": "other_loops.py ppo --batch 256",
    "replay-memory-512": "other_loops.py replay --batch 512",
    "clicks-sparse-16384": "other_loops.py clicks --batch 16384",
    "rays-4096x128": "other_loops.py rays --batch 4096",
    "mixer-128-radam": "other_loops.py mixer --batch 128",
    "mixer-128-compiled": "other_loops.py compiled_mixer --batch 128",
}

# A third set, likewise: what people train today beyond the first three; six of them feed batches of many lengths, for a whole epoch.
FRESH3: dict[str, str] = {
    "conformer-16-lengths": "speech_recipes.py conformer --batch 16 --steps 60",
    "vocoder-16": "speech_recipes.py vocoder --batch 16",
    "hubert-8-units-fp16": "speech_recipes.py units --batch 8",
    "selective-scan-8x1024": "long_sequences.py scan --batch 8 --layers 6 --amp",
    "long-convolutions-8x4096": "long_sequences.py convolutions --batch 8 --length 4096 --amp",
    "linear-attention-16x1024": "long_sequences.py linear --batch 16",
    "packed-texts-4x2048": "long_sequences.py packed --batch 4 --length 2048 --width 768 --amp",
    "latents-32x8192": "long_sequences.py latents --batch 32 --amp",
    "mesh-400k-edges": "molecules_and_meshes.py mesh",
    "forces-64-sizes": "molecules_and_meshes.py forces --batch 64 --steps 60",
    "fourier-operator-16": "molecules_and_meshes.py operator --batch 16",
    "detr-4-sides": "dense_recipes.py detr --batch 4 --steps 40",
    "pyramid-8x512-ema": "dense_recipes.py pyramid --batch 8",
    "flow-2x384": "dense_recipes.py flow --batch 2 --size 384",
    "resolution-16x256-fp16": "dense_recipes.py resolution --batch 16 --size 256",
    "feature-teacher-96": "dense_recipes.py features --batch 96 --size 224",
    "vqgan-8x256": "generative_recipes.py vqgan --batch 8",
    "glow-16x128": "generative_recipes.py glow --batch 16 --size 128",
    "style-32x128-r1": "generative_recipes.py style --batch 32",
    "matching-16-two-streams": "generative_recipes.py matching --batch 16",
    "video-8x16-fp16": "generative_recipes.py video --batch 8",
    "towers-8192-bags": "ranking_recipes.py towers --batch 8192",
    "crosses-16384": "ranking_recipes.py crosses --batch 16384",
    "sessions-512x200": "ranking_recipes.py sessions --batch 512",
    "sentences-64-lengths": "ranking_recipes.py sentences --batch 64 --steps 80",
    "grpo-32x512": "alignment_recipes.py grpo --batch 32 --steps 3",
    "rewards-8x1024-fp16": "alignment_recipes.py rewards --batch 8 --length 1024",
    "directions-8x1024": "alignment_recipes.py directions --batch 8 --length 1024",
    "llama-lion-8x512": "alignment_recipes.py lion --batch 8",
    "llama-shampoo-8x512": "alignment_recipes.py shampoo --batch 8",
    "instructions-8-lengths": "alignment_recipes.py lengths --batch 8 --steps 70",
    "trainer-summaries-8-lengths": "framework_recipes.py summaries --batch 8",
    "trainer-photos-48-fp16": "framework_recipes.py photos --batch 48",
    "lightning-judged-vae-128": "framework_recipes.py adversaries --batch 128",
    "regnet_x_8gf-48x286-bf16": "vision.py regnet_x_8gf --batch 48 --size 286 --amp bfloat16 --channels-last",
    "swin_b-32x250-fp16": "vision.py swin_b --batch 32 --size 250 --amp float16 --optimizer AdamW",
    "llama-compiled-8x512": "alignment_recipes.py compiled --batch 8",
}

# A fourth set, likewise, of what people really run, by a rule that was fixed before anything was sized. (a) What xMem's and GPUMemNet's
# lists of models have left that torchvision or transformers has, at the published batch; then torchvision's own list of models, ordered by
# the sha256 of the name, without those of the sets above: the first eight classifiers, the optimizer (of SGD, Adam, AdamW, RMSprop,
# Adagrad) and the batch (32, 64 or 128) drawn by that hash, and the first segmenter, detector and video model with the batch and optimizer
# of torchvision's reference scripts. (b) Every task guide of transformers that trains a model with transformers and torch alone, with the
# guide's model and arguments. (c) The example folders of transformers, PEFT and TRL, accelerate, Lightning, torchvision and PyTorch: the
# script that each shows first for training, where no set above has it, in its defaults.
FRESH4: dict[str, str] = {
    "xlnet-base-8": "text.py xlnet-base --batch 8",
    "xlnet-large-4": "text.py xlnet-large --batch 4",
    "gpt2-xl-2": "text.py gpt2-xl --batch 2 --length 1024",
    "deepseek-r1-1.5b-1": "text.py deepseek-r1-1.5b --batch 1",
    "dlrm-32768": "click_model.py",
    "maskrcnn-8": "detection.py maskrcnn_resnet50_fpn --batch 8",
    "regnet_y_16gf-32-rmsprop": "vision.py regnet_y_16gf --batch 32 --optimizer RMSprop",
    "efficientnet_b1-128-adagrad": "vision.py efficientnet_b1 --batch 128 --optimizer Adagrad",
    "vgg11-64-adam": "vision.py vgg11 --batch 64 --optimizer Adam",
    "squeezenet1_0-64-adagrad": "vision.py squeezenet1_0 --batch 64 --optimizer Adagrad",
    "regnet_y_32gf-64-sgd": "vision.py regnet_y_32gf --batch 64",
    "mnasnet0_5-64-rmsprop": "vision.py mnasnet0_5 --batch 64 --optimizer RMSprop",
    "efficientnet_b6-64-rmsprop": "vision.py efficientnet_b6 --batch 64 --optimizer RMSprop",
    "efficientnet_b2-64-adagrad": "vision.py efficientnet_b2 --batch 64 --optimizer Adagrad",
    "deeplabv3_resnet101-8": "vision.py deeplabv3_resnet101 --batch 8 --size 480",
    "fasterrcnn-2": "detection.py fasterrcnn_resnet50_fpn --batch 2 --size 640",
    "mc3_18-24x16": "vision.py mc3_18 --batch 24 --frames 16 --size 112",
    "guide-sequence-classification": "guide_texts.py sequence_classification",
    "guide-token-classification": "guide_texts.py token_classification",
    "guide-question-answering": "guide_texts.py question_answering",
    "guide-language-modeling": "guide_texts.py language_modeling",
    "guide-masked-language-modeling": "guide_texts.py masked_language_modeling",
    "guide-translation": "guide_texts.py translation",
    "guide-summarization": "guide_texts.py summarization",
    "guide-multiple-choice": "guide_texts.py multiple_choice",
    "guide-image-classification": "guide_pictures_sounds.py image_classification",
    "guide-semantic-segmentation": "guide_pictures_sounds.py semantic_segmentation",
    "guide-video-classification": "guide_pictures_sounds.py video_classification",
    "guide-image-captioning": "guide_pictures_sounds.py image_captioning",
    "guide-visual-question-answering": "guide_pictures_sounds.py visual_question_answering",
    "guide-knowledge-distillation": "guide_pictures_sounds.py knowledge_distillation",
    "guide-audio-classification": "guide_pictures_sounds.py audio_classification",
    "guide-speech-recognition": "guide_pictures_sounds.py speech_recognition --batches 16",
    "guide-text-to-speech": "guide_pictures_sounds.py text_to_speech --batches 24",
    "example-run-glue": "example_folders.py glue",
    "example-run-clm": "example_folders.py clm",
    "example-run-mlm": "example_folders.py mlm",
    "example-whisper-small": "example_folders.py whisper",
    "example-sft-lora": "example_folders.py sft",
    "example-accelerate-nlp": "example_folders.py nlp",
    "example-accelerate-cv": "example_folders.py cv",
    "example-lightning-cifar": "example_folders.py cifar",
    "example-torchvision-recipe": "example_folders.py recipe",
    "example-neural-style": "example_folders.py style",
}

# A fifth set, likewise: public training programs as they are, none of them ours, chosen and written down by somebody who had not read how
# sizes are predicted. The rule, final before anything was sized: widely used repositories, the best known first as far as their snapshots
# could be had; of each the training scripts that its front page or example folder shows, at most two (PyG four, pytorch/examples six), each
# in its own folder. One is in if arguments alone make it run, from start to end, with today's torch 2.11, numpy 2.5 and transformers 5, and it
# needs nothing but torch, torchvision, torch-geometric, lightning, numpy, scipy, scikit-learn, networkx, Pillow, tqdm and sentencepiece; and
# if its data can be made up in their real format (public_data.py), which torchvision's checksums forbid for CIFAR and STL. Not one line of
# them is changed. Models, optimizers and precisions are the programs' defaults or those of their documentation; batches or widths are raised
# where the default would leave the card almost empty, epochs and files lowered so that a job makes eight steps or more and ends in some
# twenty seconds. The two word models are saved under names of their own, since they share a folder; Self-Attention-GAN logs nothing, since its
# log line fails with torch of today (it indexes a number). No one was left out for being hard or easy to predict. Each was then run on a CPU,
# with smaller batches, before anything was sized; no job was taken off. Repositories, in the order of the list: karpathy/nanoGPT@3adf61e1,
# karpathy/llama2.c@350e04fe, pytorch/examples@77f55b91, pyg-team/pytorch_geometric@5c6461b2, eriklindernoren/PyTorch-GAN@36d3c77e,
# pytorch/vision@e6f04004 (references), Lightning-AI/pytorch-lightning@7f0c3436, yunjey/stargan@94dd002e, locuslab/TCN@2f8c2b81,
# yanx27/Pointnet_Pointnet2_pytorch@eb64fe0b, Diego999/pyGAT@3664f2dc, heykeetae/Self-Attention-GAN@8714a54b,
# weihua916/powerful-gnns@9a2ce8ac, nnzhan/MTGNN@f811746f, yaodongyu/TRADES@6e8e11b7, rosinality/glow-pytorch@97081ff1,
# pmixer/SASRec.pytorch@fde8a9c0, bot66/MNISTDiffusion@c7ba8e09.
FRESH5: dict[str, str] = {
    "public-nanogpt-characters": "@nanoGPT/train.py config/train_shakespeare_char.py --compile=False --max_iters=60 --eval_interval=30 --eval_iters=10",
    "public-nanogpt-medium-fp16": "@nanoGPT/train.py --n_layer=24 --n_head=16 --n_embd=1024 --dropout=0.1 --batch_size=8 --gradient_accumulation_steps=4 --dtype=float16 --compile=False --max_iters=8 --eval_interval=100 --eval_iters=4 --log_interval=1",
    "public-llama2c-128x256": "@llama2.c/train.py --compile=False --max_iters=8 --eval_interval=100 --eval_iters=4",
    "public-mnist-1280": "@examples/mnist/main.py --batch-size 1280 --test-batch-size 512 --epochs 5 --log-interval 1",
    "public-siamese-1280": "@examples/siamese_network/main.py --batch-size 1280 --test-batch-size 512 --epochs 5 --log-interval 1",
    "public-words-lstm-256": "@examples/word_language_model/main.py --accel --data ../../data/wikitext --model LSTM --emsize 650 --nhid 650 --dropout 0.5 --tied --batch_size 256 --epochs 1 --log-interval 5 --save lstm.pt",
    "public-words-transformer-64": "@examples/word_language_model/main.py --accel --data ../../data/wikitext --model Transformer --emsize 512 --nhid 2048 --nlayers 6 --nhead 8 --batch_size 64 --bptt 256 --use-optimizer --lr 0.001 --epochs 1 --log-interval 5 --save transformer.pt",
    "public-imagenet-resnet18-256": "@examples/imagenet/main.py ../../data/pictures --epochs 5 --print-freq 1",
    "public-imagenet-densenet161-64": "@examples/imagenet/main.py ../../data/pictures --arch densenet161 --batch-size 64 --epochs 1 --gpu 0 --print-freq 1",
    "public-pyg-gcn": "@pytorch_geometric/examples/gcn.py --dataset PubMed --hidden_channels 1024 --epochs 30",
    "public-pyg-gat": "@pytorch_geometric/examples/gat.py --dataset PubMed --hidden_channels 32 --epochs 30",
    "public-pyg-ppi": "@pytorch_geometric/examples/ppi.py",
    "public-pyg-diff-pool": "@pytorch_geometric/examples/proteins_diff_pool.py",
    "public-cyclegan-4": "@PyTorch-GAN/implementations/cyclegan/cyclegan.py --n_epochs 1 --decay_epoch 0 --batch_size 4 --sample_interval 6",
    "public-pix2pix-12": "@PyTorch-GAN/implementations/pix2pix/pix2pix.py --n_epochs 2 --decay_epoch 1 --batch_size 12 --sample_interval 4",
    "public-munit-4": "@PyTorch-GAN/implementations/munit/munit.py --n_epochs 1 --decay_epoch 0 --batch_size 4 --sample_interval 6",
    "public-vision-resnet50-recipe": "@vision/references/classification/train.py --data-path ../../../data/pictures --model resnet50 --batch-size 128 --epochs 3 --workers 4 --lr 0.5 --lr-scheduler cosineannealinglr --lr-warmup-epochs 1 --lr-warmup-method linear --auto-augment ta_wide --random-erase 0.1 --label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0 --weight-decay 0.00002 --norm-weight-decay 0.0 --train-crop-size 176 --model-ema --val-resize-size 232 --amp --print-freq 1",
    "public-vision-similarity-120": "@vision/references/similarity/train.py --dataset-dir ../../../data --epochs 1 --labels-per-batch 10 --samples-per-label 12 --print-freq 1",
    "public-lightning-transformer": "@pytorch-lightning/examples/pytorch/basics/transformer.py",
    "public-stargan-32": "@stargan/main.py --use_tensorboard false --celeba_image_dir ../data/faces/CelebA --attr_path ../data/faces/list_attr_celeba.txt --batch_size 32 --num_iters 20 --num_iters_decay 10 --sample_step 10 --model_save_step 20 --log_step 5",
    "public-tcn-pixels-256": "@TCN/TCN/mnist_pixel/pmnist_test.py --permute --nhid 100 --batch_size 256 --epochs 1 --log-interval 2",
    "public-pointnet2-msg-32": "@Pointnet_Pointnet2_pytorch/train_classification.py --model pointnet2_cls_msg --batch_size 32 --epoch 1",
    "public-pygat-dense": "@pyGAT/train.py --epochs 20",
    "public-sagan-128": "@Self-Attention-GAN/main.py --batch_size 128 --imsize 64 --dataset celeb --adv_loss hinge --version sagan_celeb --image_path ../data/faces --total_step 16 --sample_step 8 --log_step 100",
    "public-powerful-gnns-1024": "@powerful-gnns/main.py --dataset MUTAG --hidden_dim 1024 --batch_size 128 --iters_per_epoch 10 --epochs 2",
    "public-mtgnn-128": "@MTGNN/train_multi_step.py --adj_data ../data/METR-LA/adj_mx.pkl --data ../data/METR-LA --device cuda:0 --batch_size 128 --epochs 2 --runs 1 --print_every 1 --save ../data/METR-LA/",
    "public-trades-1280": "@TRADES/train_trades_mnist.py --batch-size 1280 --test-batch-size 512 --epochs 5 --log-interval 1",
    "public-glow-32": "@glow-pytorch/train.py ../data/pictures/train --batch 32 --iter 12",
    "public-sasrec-512": "@SASRec.pytorch/python/main.py --dataset=ml-1m --train_dir=default --maxlen=200 --dropout_rate=0.2 --device=cuda --batch_size=512 --hidden_units=200 --num_epochs=20",
    "public-mnist-diffusion-512": "@MNISTDiffusion/train_mnist.py --batch_size 512 --epochs 2 --timesteps 200",
}

# Under torch.compile, which the first look at FRESH3 had left out.
COMPILED: dict[str, str] = {
    "compiled-gpt-12x1024": "compiled_recipes.py gpt --batch 12",
    "compiled-resnet50-128": "compiled_recipes.py resnet --batch 128",
    "compiled-trainer-bert-16x512": "compiled_recipes.py trainer --batch 16 --length 512",
    "compiled-two-lengths-16": "compiled_recipes.py lengths --batch 16",
    "compiled-in-parts-8x1024": "compiled_recipes.py parts --batch 8",
}
EVERY = {**JOBS, **FRESH, **FRESH2, **FRESH3, **FRESH4, **FRESH5, **COMPILED}


def command(name: str) -> list[str]:
    """The program's file and its arguments."""
    program, *arguments = EVERY[name].split()
    if program.startswith("@"):
        return [os.path.join(OTHERS, program[1:]), *arguments]
    return [str(PROGRAMS / program), *arguments]


def half(name: str) -> str:
    """``tuning`` or ``reporting``; ``fresh``, ``fresh2``, ``fresh3``, ``fresh4``, ``fresh5``, ``compiled``."""
    sets = {
        "fresh": FRESH,
        "fresh2": FRESH2,
        "fresh3": FRESH3,
        "fresh4": FRESH4,
        "fresh5": FRESH5,
        "compiled": COMPILED,
    }
    for part, jobs in sets.items():
        if name in jobs:
            return part
    ordered = sorted(JOBS, key=lambda job: hashlib.sha256(job.encode()).hexdigest())
    return "tuning" if ordered.index(name) < len(ordered) // 2 else "reporting"


def wanted(only: str) -> list[str]:
    """``only``: a half, or names with commas between; empty for the sixty."""
    names = only.split(",")
    return [name for name in EVERY if half(name) in names or name in names or (not only and name in JOBS)]
