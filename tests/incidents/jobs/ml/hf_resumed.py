"""A Hugging Face Trainer as the examples of transformers have it, with their parser; its card is full above a micro-batch of four from step 7 on."""

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        words = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class FullCard(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print(f"begins at step {state.global_step}", flush=True)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step >= 6 and args.per_device_train_batch_size > 4:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.00 GiB is free."
            )


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), callbacks=[FullCard()])
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    size = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    print(f"ended at step {trainer.state.global_step}, effective batch {size}", flush=True)


if __name__ == "__main__":
    main()
