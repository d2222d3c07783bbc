"""What the next answers have to say, must not say, and what is kept of them."""

from __future__ import annotations

from exlchat.app.commands.action import Action

SPEECH_ACTIONS: tuple[Action, ...] = (
    Action(
        "schema",
        "Answer by a JSON schema",
        "Have the next answers be JSON by a schema, of a file or typed; with :: MESSAGE behind it, only that one.",
        (),
        "/schema",
        "[FILE|JSON|off]",
    ),
    Action(
        "regex",
        "Answer by a regular expression",
        "Have the next answers match a regular expression as a whole; off lets them go.",
        (),
        "/regex",
        "[RE|off]",
    ),
    Action(
        "choice",
        "Answer one of these",
        "Have the next answers be one of some texts, with commas between them; off lets them go.",
        (),
        "/choice",
        "[A, B|off]",
    ),
    Action(
        "grammar",
        "Answer by a grammar",
        "Have the next answers follow a grammar (Lark, llguidance), of a file or as typed; off lets them go.",
        (),
        "/grammar",
        "[FILE|off]",
    ),
    Action(
        "ban",
        "Ban a text",
        "Have TEXT never come in an answer, which goes back and takes another way; off allows all again.",
        (),
        "/ban",
        "[TEXT|off]",
    ),
    Action(
        "stop-text",
        "Stop at a text",
        "End answers before TEXT; off clears all such texts. While an answer is on its way, alone, stop it.",
        (),
        "/stop",
        "[TEXT|off]",
    ),
    Action(
        "begin",
        "Begin the answers",
        "Have each new answer begin with TEXT, from which the model goes on; off lets it begin by itself.",
        (),
        "/begin",
        "[TEXT|off]",
    ),
    Action(
        "think",
        "Thinking",
        "Have the model think first or not, where its template can be told, or for at most N tokens.",
        (),
        "/think",
        "[on|off|N]",
    ),
    Action(
        "negative",
        "Negative prompt",
        "Lean away from another system prompt, which guidance_scale above 1 does; off leans away from none at all.",
        (),
        "/negative",
        "[TEXT|off]",
    ),
    Action(
        "draft",
        "Drafting",
        "Choose who guesses tokens ahead, for speed: auto, ngram, a draft model (exlchat --draft DIR), or off.",
        (),
        "/draft",
        "[auto|ngram|model|off]",
    ),
    Action(
        "logprobs",
        "Keep probabilities",
        "Keep with each token of the next answers how likely it was, and the N likeliest; off keeps nothing.",
        (),
        "/logprobs",
        "[N|off]",
    ),
)
