"""``python -m tests.programs.clients --url http://127.0.0.1:8080``: real clients hold a conversation with a
tool.

Run it with the Python of an environment that has them; those that are missing are named. Each must
get the model to call the tool, give back its result and read an answer. It ends with 1 where one
cannot. It needs no other tests.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUESTION = "What is the weather in Paris? Use the tool."
SAID = "It rains in Paris, 12 degrees."
MODEL = "any-name"
LIMIT_S = 300.0
MOST_TOKENS = 60
"""Limit on each reply: small models may go on without end."""
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network first
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
Ask = Callable[[str], Any]
"""Asks with a choice of tools, and returns the message that answers."""


class Seen:
    """Calls that the tool received."""

    def __init__(self) -> None:
        self.cities: list[str] = []

    def get_weather(self, city: str) -> str:
        """Get the weather of a city."""
        self.cities.append(city)
        return SAID


def talked(messages: list[Any], seen: Seen, ask: Ask) -> str:
    """Have the tool called, then the question answered; the messages go back as they came."""
    for choice in ("required", "none"):
        message = ask(choice)
        messages.append(message)
        for call in message.tool_calls or []:
            result = seen.get_weather(**json.loads(call.function.arguments))
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": result}
            )
    return str(message.content)


def with_openai(url: str, seen: Seen, is_streamed: bool) -> str:
    """Chat completions of the official client; its own message objects go back."""
    import openai
    from pydantic import BaseModel

    class GetWeather(BaseModel):
        city: str

    client = openai.OpenAI(base_url=url, api_key="none", timeout=LIMIT_S, max_retries=0)
    tool: Any = openai.pydantic_function_tool(
        GetWeather, name="get_weather", description="Get the weather of a city"
    )
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    arguments: dict[str, Any] = {
        "model": MODEL,
        "tools": [tool],
        "temperature": 0,
        "max_tokens": MOST_TOKENS,
    }

    def ask(choice: Any) -> Any:
        if not is_streamed:
            return (
                client.chat.completions.parse(messages=messages, tool_choice=choice, **arguments)
                .choices[0]
                .message
            )
        with client.chat.completions.stream(
            messages=messages, tool_choice=choice, **arguments
        ) as stream:
            return stream.get_final_completion().choices[0].message

    text = talked(messages, seen, ask)
    messages += [{"role": "user", "content": "Thanks."}]
    assert client.chat.completions.create(messages=messages, **arguments).choices
    return text


def with_litellm(url: str, seen: Seen, is_streamed: bool) -> str:
    """litellm, which adds fields of its own to what it sends back."""
    import litellm

    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    function = {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": CITY,
    }
    arguments: dict[str, Any] = {
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "temperature": 0,
    }
    arguments |= {
        "model": f"openai/{MODEL}",
        "api_base": url,
        "api_key": "none",
        "max_tokens": MOST_TOKENS,
    }

    def ask(choice: str) -> Any:
        answer: Any = litellm.completion(**arguments, tool_choice=choice, stream=is_streamed)
        answer = (
            litellm.stream_chunk_builder(list(answer), messages=messages) if is_streamed else answer
        )
        return answer.choices[0].message

    return talked(messages, seen, ask)


def with_responses(url: str, seen: Seen, is_streamed: bool) -> str:
    """The same by ``/v1/responses``; output items go back."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none", timeout=LIMIT_S, max_retries=0)
    tools = [
        {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True},
        {"type": "web_search"},
    ]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    arguments: dict[str, Any] = {
        "model": MODEL,
        "input": messages,
        "tools": tools,
        "temperature": 0,
    }
    arguments["max_output_tokens"] = MOST_TOKENS
    for choice in ("required", "none"):
        if is_streamed:
            with client.responses.stream(tool_choice=choice, **arguments) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(tool_choice=choice, **arguments)
        messages += response.output
        for item in response.output:
            if item.type == "function_call":
                result = seen.get_weather(**json.loads(item.arguments))
                messages.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": result}
                )
    return str(response.output_text)


def with_llm(url: str, seen: Seen, is_streamed: bool) -> str:
    """The command ``llm`` with a function of its own; it says on its own output what it called."""
    with tempfile.TemporaryDirectory() as home:
        model = f'- model_id: jalopy\n  model_name: {MODEL}\n  api_base: "{url}"\n  supports_tools: true\n'
        (Path(home) / "extra-openai-models.yaml").write_text(model)
        function = f'def get_weather(city: str) -> str:\n    "Get the weather of a city"\n    return "{SAID}"\n'
        command = [
            str(Path(sys.executable).parent / "llm"),
            "-m",
            "jalopy",
            QUESTION,
            "--functions",
            function,
            "--td",
        ]
        command += f"-o temperature 0 -o max_tokens {MOST_TOKENS} --key none".split()
        command += [] if is_streamed else ["--no-stream"]
        environment = {**os.environ, "LLM_USER_PATH": home}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr
        if "get_weather" in done.stderr:
            seen.cities.append(done.stderr)
        return done.stdout


def with_langchain(url: str, seen: Seen, is_streamed: bool) -> str:
    """langchain-openai: chunks are added up, and its messages go back."""
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model=MODEL,
        base_url=url,
        api_key="none",
        temperature=0,
        max_tokens=MOST_TOKENS,
        max_retries=0,
    )
    tools = [tool(seen.get_weather)]
    messages: list[Any] = [("system", "Be brief."), ("user", QUESTION)]
    text = ""
    for choice in ("required", "none"):
        bound = model.bind_tools(tools, tool_choice=choice)
        if is_streamed:
            answer: Any = None
            for chunk in bound.stream(messages):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = bound.invoke(messages)
        messages.append(answer)
        for call in answer.tool_calls:
            messages.append(ToolMessage(seen.get_weather(**call["args"]), tool_call_id=call["id"]))
        text = str(answer.content)
    return text


def with_pydantic_ai(url: str, seen: Seen, is_streamed: bool) -> str:
    """pydantic-ai's agent runs the tool itself."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))
    agent: Any = Agent(
        model,
        instructions="Be brief.",
        model_settings={"temperature": 0, "max_tokens": MOST_TOKENS},
    )
    agent.tool_plain(seen.get_weather)

    async def run() -> str:
        if not is_streamed:
            return str((await agent.run(QUESTION)).output)
        async with agent.run_stream(QUESTION) as result:
            return str(await result.get_output())

    return asyncio.run(run())


def with_agents(url: str, seen: Seen, is_streamed: bool) -> str:
    """openai-agents by ``/v1/responses``, its usual way."""
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none", timeout=LIMIT_S, max_retries=0)
    model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
    settings = agents.ModelSettings(temperature=0, max_tokens=MOST_TOKENS)
    tools: Any = [agents.function_tool(seen.get_weather)]
    agent = agents.Agent(
        "helper", instructions="Be brief.", model=model, tools=tools, model_settings=settings
    )

    async def run() -> str:
        if not is_streamed:
            return str((await agents.Runner.run(agent, QUESTION, max_turns=4)).final_output)
        result = agents.Runner.run_streamed(agent, QUESTION, max_turns=4)
        async for _event in result.stream_events():
            pass
        return str(result.final_output)

    return asyncio.run(run())


def with_ollama(url: str, seen: Seen, is_streamed: bool) -> str:
    """Ollama's package, by its own routes; its message objects go back."""
    import ollama

    client = ollama.Client(host=url.removesuffix("/v1"), timeout=LIMIT_S)
    assert client.list().models
    assert client.show(MODEL).modelinfo
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    options: Any = {"temperature": 0, "num_predict": MOST_TOKENS}
    text = ""
    for tools in ([seen.get_weather], None):
        answer: Any = client.chat(MODEL, messages, tools=tools, options=options, stream=is_streamed)
        for chunk in answer if is_streamed else [answer]:
            messages.append(chunk.message)
            text += chunk.message.content or ""
            for call in chunk.message.tool_calls or []:
                result = seen.get_weather(**call.function.arguments)
                messages.append(
                    {"role": "tool", "tool_name": call.function.name, "content": result}
                )
    assert client.generate(MODEL, "Say yes.", options=options).done
    return text


CLIENTS: dict[str, tuple[str, Callable[[str, Seen, bool], str]]] = {
    "openai": ("openai", with_openai),
    "openai, responses": ("openai", with_responses),
    "llm": ("llm", with_llm),
    "litellm": ("litellm", with_litellm),
    "langchain-openai": ("langchain_openai", with_langchain),
    "pydantic-ai": ("pydantic_ai", with_pydantic_ai),
    "ollama": ("ollama", with_ollama),
    "openai-agents": ("agents", with_agents),
}


def until_open(url: str) -> None:
    """Wait until the model is open."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=LIMIT_S):
                return
        except OSError:
            time.sleep(1.0)


def main(arguments: list[str]) -> int:
    """Try each client, whole and streamed."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.clients", description=__doc__)
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="of a running jalopy serve, without /v1"
    )
    parser.add_argument("--only", action="append", help="one client; may be given several times")
    options = parser.parse_args(arguments)
    until_open(options.url)
    n_failed = 0
    for name, (package, talk) in CLIENTS.items():
        if options.only and name not in options.only:
            continue
        if importlib.util.find_spec(package) is None:
            print(f"missing  {name}")
            continue
        for is_streamed in (False, True):
            seen = Seen()
            mode = "streamed" if is_streamed else "whole"
            try:
                text = talk(f"{options.url}/v1", seen, is_streamed).strip()
                fault = (
                    ""
                    if text and seen.cities
                    else f"{len(seen.cities)} calls, answer {text[:60]!r}"
                )
            except Exception as error:
                fault = f"{type(error).__name__}: {str(error)[:300]}"
                text = ""
            n_failed += bool(fault)
            print(
                (
                    f"{'FAILED' if fault else 'ok':<8} {name:<20} {mode:<9} "
                    f"{fault or ' '.join(text.split())[:70]}"
                ),
                flush=True,
            )
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
