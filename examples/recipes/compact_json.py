"""JSON without whitespace between its parts: for a model that writes newlines until its limit."""

from logitport_testing import StoryModel, simulate

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "tame": {"type": "boolean"}},
    "required": ["name", "tame"],
    "additionalProperties": False,
}
COMPACT = [("grammar", {"json_schema": SCHEMA, "disable_any_whitespace": True})]
BOUNDED = [("grammar", {"json_schema": SCHEMA})]
ANY = [("grammar", {"json_schema": SCHEMA, "disable_any_whitespace": False})]
NEWLINES = [("logit_bias", {"logit_bias": {"35": 50}})]  # a model that prefers "\n", id 35 of the model below

if __name__ == "__main__":
    model = StoryModel()
    for chain in (ANY, BOUNDED, COMPACT):
        result = simulate([*NEWLINES, *chain], model, model.encode("One day"), steps=60)
        print(repr(model.decode(result.output_token_ids)), "-", result.ended_because)
