"""Recipe 10: a request with a published processor. `python ask_engine.py vllm MODEL`, or sglang."""

import json
import sys

CHAIN = [["team/end-sentence:v2", {"max_ids": 40, "period": 13}]]  # 13 is the id of "." in Qwen3


def for_vllm(chain):
    return {"vllm_xargs": {"logitport": json.dumps(chain)}}


def for_sglang(chain):
    return {"custom_params": {"logitport": chain}}


if __name__ == "__main__":
    from openai import OpenAI

    engine, model = sys.argv[1:]
    address, body = {
        "vllm": ("http://localhost:8000/v1", for_vllm(CHAIN)),
        "sglang": ("http://localhost:30000/v1", for_sglang(CHAIN)),
    }[engine]
    messages = [{"role": "user", "content": "Tell me a story."}]
    completion = OpenAI(base_url=address, api_key="none").chat.completions.create(
        model=model, messages=messages, extra_body=body
    )
    print(completion.choices[0].message.content)
