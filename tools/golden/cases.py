"""What make_goldens.py writes: the seed, the samples and steps, the tiny models and their adapters."""
SEED = 20240607
LENGTHS = (24, 17, 9)
STEPS = 20
STEP = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
# Above 1, so that dividing the logits by it does not stretch their rounding.
RL_TEMPERATURE = 1.25
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# config.json as written: `torch_dtype` + `rope_theta` + `rope_scaling` is the spelling of transformers 4 and earlier
# (most published files), `dtype` + `rope_parameters` that of transformers 5.
CONFIGS = {
    # head_dim 16 with this theta and original length puts one frequency in llama3's unscaled band, one in the smooth
    # band and six in the scaled one.
    "llama3": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 250, "eos_token_id": [251, 252, 253], "hidden_act": "silu", "hidden_size": 64,
        "initializer_range": 0.02, "intermediate_size": 128, "max_position_embeddings": 512, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 64, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
        "transformers_version": "4.43.0.dev0", "use_cache": True, "vocab_size": 256,
    },
    "smollm2": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2, "head_dim": 32, "hidden_act": "silu",
        "hidden_size": 96, "initializer_range": 0.041666666666666664, "intermediate_size": 128,
        "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 3, "num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": 2,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}, "tie_word_embeddings": True,
        "transformers_version": "5.19.0", "use_cache": True, "vocab_size": 192,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 7,
        "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.34.0.dev0",
        "use_cache": True, "vocab_size": 250,
    },
    # sliding_window is shorter than the samples but switched off by use_sliding_window, as in published Qwen2 files.
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 190, "eos_token_id": 190,
        "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 88,
        "max_position_embeddings": 32768, "max_window_layers": 1, "model_type": "qwen2", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 6, "tie_word_embeddings": True, "torch_dtype": "float32",
        "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 201,
    },
    "qwen2_untied": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 220, "eos_token_id": 221,
        "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
        "max_position_embeddings": 32768, "max_window_layers": 2, "model_type": "qwen2", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False, "vocab_size": 224,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 300, "dtype": "bfloat16", "eos_token_id": 302, "head_dim": 32, "hidden_act": "silu",
        "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 128,
        "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 40960,
        "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "pad_token_id": None, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "sliding_window": None,
        "tie_word_embeddings": True, "transformers_version": "5.19.0", "use_cache": True,
        "use_sliding_window": False, "vocab_size": 304,
    },
}
# Bytes; makes two files of mistral's 376 kB.
MAX_SHARD = {"mistral": 250_000}

# Keys of rank_pattern and alpha_pattern stand in sorted order: PEFT saves with sort_keys, and the first match wins.
# `layers.1.mlp.down_proj` therefore never applies: `down_proj` stands before it.
EXTRA_ADAPTERS = {
    "qwen3": {
        "pattern": dict(r=4, lora_alpha=8, target_modules=PROJECTIONS, use_rslora=True,
                        rank_pattern={"down_proj": 2, "layers.1.mlp.down_proj": 7, "layers.1.self_attn.q_proj": 8,
                                      r"model\.layers\.0\.mlp\.(gate|up)_proj": 3},
                        alpha_pattern={"down_proj": 5, "layers.1.self_attn.q_proj": 12, "v_proj": 3}),
        "regex": dict(r=5, lora_alpha=10,
                      target_modules=r"model\.layers\.0\.self_attn\.(q|k)_proj|.*\.mlp\.down_proj"),
        "layers": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], layers_to_transform=[1]),
    },
}
REFUSED_ADAPTERS = {
    "qwen2_untied": {
        "dora": dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_dora=True),
        "bias": dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], bias="all"),
        "modules_to_save": dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]),
    },
}
