"""The names of OpenTelemetry's GenAI conventions, kept as constants of our own.

The conventions live in a repository of their own and still move; older names that files hold are
listed beside the newest. Nothing of OpenTelemetry needs to be installed.
"""

from __future__ import annotations

OPERATION = "gen_ai.operation.name"
CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"
MODEL_OPERATIONS = {"chat", "text_completion", "generate_content", "completion"}
PROGRAM_OPERATIONS = {"invoke_agent", "create_agent", "invoke_workflow", "plan"}

CONVERSATION = "gen_ai.conversation.id"
AGENT_NAMES = ("gen_ai.agent.name", "gen_ai.workflow.name")
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = ("gen_ai.tool.call.arguments", "gen_ai.tool.arguments")
TOOL_RESULT = ("gen_ai.tool.call.result", "gen_ai.tool.output", "gen_ai.tool.message")
INPUT_MESSAGES = ("gen_ai.input.messages", "gen_ai.prompt")
OUTPUT_MESSAGES = ("gen_ai.output.messages", "gen_ai.completion")
INPUT_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
PROMPT_EVENT, COMPLETION_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion"
CHOICE_EVENT = "gen_ai.choice"

MODELS = ("gen_ai.response.model", "gen_ai.request.model")
REQUEST_MODEL = "gen_ai.request.model"
PROVIDERS = ("gen_ai.provider.name", "gen_ai.system")
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
TOTAL_TOKENS = ("llm.usage.total_tokens",)
CACHE_READ_TOKENS = ("gen_ai.usage.cache_read.input_tokens",)
CACHE_WRITE_TOKENS = ("gen_ai.usage.cache_creation.input_tokens",)

USER_ID = ("user.id", "enduser.id")
ERROR_TYPE = "error.type"

STEP = "hybridagi_steps.step"
"""Our own attribute: the whole step as JSON, without its vector and its time."""
PROGRAM_END = "hybridagi_steps.program_end"
"""Our own event on a program's span: its ProgramEnd step."""
