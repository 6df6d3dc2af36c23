"""The types of text models in models that contain one, for files that leave them out, as in transformers 5.24.

A row has the type of the part, and the types of models that contain it. Types whose part has their name and "_text" are
not listed.
"""

ROWS = """\
bert grounding-dino mm-grounding-dino vision-text-dual-encoder
blt_global_transformer blt
clip_text_model clip omdet-turbo sam3
clvp_encoder clvp
cohere2 aya_vision cohere2_vision
deepseek_v3 kimi_k25
emu3_text_model emu3
gemma paligemma
gemma3_text shieldgemma2
gemma4_unified_text gemma4_unified_assistant
glm4v_text glm46v glmga
granite granite_speech granite_speech_plus
hyperclovax hyperclovax_vision_v2
inkling_text inkling_mm_model
lfm2 lfm2_vl
lfm3 lfm3_vl
llama deepseek_vl deepseek_vl_hybrid glmasr idefics3 janus llava llava_next llava_next_video omniasr perception_lm
llama smolvlm video_llava vipllava voxtral
mistral idefics2 mistral3
mllama_text_model mllama
modernbert modernvbert pe_audio pe_audio_video pe_video
opt blip-2 instructblip instructblipvideo
persimmon fuyu
qwen2 audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision musicflamingo ovis2 pp_chart2table qwen2_audio
qwen2 vibevoice vibevoice_asr video_llama_3
qwen2_5_omni_text qwen2_5_omni_thinker
qwen3 fun_asr_nano lighton_ocr moss_transcribe_diarize qianfan_ocr qwen3_asr
qwen3_5_text jev minicpm_ocr minicpmv4_6 minicpmv4_7
qwen3_omni_moe_text qwen3_omni_moe_thinker
qwen3_vl_text cosmos3_omni
step3p5 step3p7
t5gemma2_text t5gemma2_encoder
ultrabert ultravbert
"""
TEXT = {whole: text for text, *wholes in map(str.split, ROWS.splitlines()) for whole in wholes}
# of these, types whose files may have the keys of the text model at the top level
FLAT = {"fuyu"}
