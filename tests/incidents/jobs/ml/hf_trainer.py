"""A Hugging Face Trainer on a small random model, as its documentation has it. Nothing here knows oomproof."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        words = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=40,
        per_device_eval_batch_size=32,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    held_out = torch.utils.data.Subset(Sentences(), range(256))
    Trainer(model=model, args=arguments, train_dataset=Sentences(), eval_dataset=held_out).train()
    print("the script goes on after train()", flush=True)


if __name__ == "__main__":
    main()
