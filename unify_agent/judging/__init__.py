"""One client for any OpenAI-compatible endpoint: structured verdicts, retries, a log that is also the cache."""

from unify_agent.judging.answers import Answer, ChatError, FunctionCall
from unify_agent.judging.calllog import CallLog, Log
from unify_agent.judging.client import ChatClient, Request
from unify_agent.judging.endpoint import Endpoint
from unify_agent.judging.gate import Gate, Spent
from unify_agent.judging.messages import Message, Picture, PicturePolicy, assistant, system, tool_result, user

__all__ = [
    "Answer",
    "CallLog",
    "ChatClient",
    "ChatError",
    "Endpoint",
    "FunctionCall",
    "Gate",
    "Log",
    "Message",
    "Picture",
    "PicturePolicy",
    "Request",
    "Spent",
    "assistant",
    "system",
    "tool_result",
    "user",
]
