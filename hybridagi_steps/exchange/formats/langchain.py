"""LangChain's messages, in, in the three forms that people save them."""

from __future__ import annotations

from hybridagi_steps.exchange.chats import ChatFormat, message_list
from hybridagi_steps.messages.turns import is_langchain_message, langchain_turns

FORMAT = ChatFormat(
    "langchain",
    lambda value: [message_list(value, "langchain", langchain_turns)],
    ([is_langchain_message], {"messages": [is_langchain_message]}),
)
