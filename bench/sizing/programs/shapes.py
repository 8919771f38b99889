"""Shapes of published language models, with random weights: nothing is downloaded."""

import transformers as hf

SHAPES = {
    "distilgpt2": lambda: hf.GPT2Config(n_layer=6),
    "gpt2": lambda: hf.GPT2Config(),
    "gpt2-medium": lambda: hf.GPT2Config(n_embd=1024, n_layer=24, n_head=16),
    "cerebras-111m": lambda: hf.GPT2Config(n_layer=10, n_inner=3072, n_positions=2048, activation_function="gelu"),
    "gpt-neo-125m": lambda: hf.GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]]
    ),
    "opt-125m": lambda: hf.OPTConfig(),
    "opt-350m": lambda: hf.OPTConfig(
        hidden_size=1024, num_hidden_layers=24, ffn_dim=4096, num_attention_heads=16,
        word_embed_proj_dim=512, do_layer_norm_before=False,
    ),
    "pythia-410m": lambda: hf.GPTNeoXConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, vocab_size=50304
    ),
    "pythia-1b": lambda: hf.GPTNeoXConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=8, vocab_size=50304
    ),
    "qwen3-0.6b": lambda: hf.Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True,
    ),
    "qwen3-4b": lambda: hf.Qwen3Config(
        hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True,
    ),
    "llama-3.2-1b": lambda: hf.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "llama-3.2-3b": lambda: hf.LlamaConfig(
        hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
        num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "gemma-2-2b": lambda: hf.Gemma2Config(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, vocab_size=256000,
    ),
    "t5-small": lambda: hf.T5Config(),
    "t5-base": lambda: hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "deberta-base": lambda: hf.DebertaConfig(
        relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False, num_labels=2
    ),
    "bert-base": lambda: hf.BertConfig(num_labels=2),
    "roberta-large": lambda: hf.RobertaConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        vocab_size=50265, max_position_embeddings=514, num_labels=2,
    ),
    "bert-large": lambda: hf.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=2
    ),
    "bart-base": lambda: hf.BartConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    ),
    "gpt2-large": lambda: hf.GPT2Config(n_embd=1280, n_layer=36, n_head=20),
    "bloom-560m": lambda: hf.BloomConfig(hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880),
    "phi-1.5": lambda: hf.PhiConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32, vocab_size=51200
    ),
    "mistral-like": lambda: hf.MistralConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, vocab_size=32000, sliding_window=1024,
    ),
    "mixtral-like": lambda: hf.MixtralConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12,
        num_key_value_heads=4, num_local_experts=4, vocab_size=32000,
    ),
    "roberta-xlm": lambda: hf.XLMRobertaConfig(vocab_size=250002, max_position_embeddings=514, num_labels=2),
    "electra-base": lambda: hf.ElectraConfig(
        embedding_size=768, hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_labels=2
    ),
    "modernbert": lambda: hf.ModernBertConfig(num_labels=2),
    "gpt2-xl": lambda: hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25),
    "xlnet-base": lambda: hf.XLNetConfig(d_model=768, n_layer=12, n_head=12, d_inner=3072, num_labels=2),
    "xlnet-large": lambda: hf.XLNetConfig(num_labels=2),
    "deepseek-r1-1.5b": lambda: hf.Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
        num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=False,
    ),
    "qwen2.5-0.5b": lambda: hf.Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True,
    ),
}  # fmt: skip


def make(name: str):
    config = SHAPES[name]()
    if name.startswith(("t5", "bart")):
        config.decoder_start_token_id = 0
        return hf.AutoModelForSeq2SeqLM.from_config(config)
    if name.startswith(("deberta", "bert", "roberta", "electra", "modernbert", "xlnet")):
        return hf.AutoModelForSequenceClassification.from_config(config)
    return hf.AutoModelForCausalLM.from_config(config)
