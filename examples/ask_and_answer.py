"""Request and reply with values of a type: a service that converts temperatures, and a program that asks it.

Try: sbus hub -a /tmp/bus
     and in another terminal: SBUS_ADDRESS=/tmp/bus python examples/ask_and_answer.py serve
     and in a third: SBUS_ADDRESS=/tmp/bus python examples/ask_and_answer.py ask 21.5
"""

import sys

import msgspec

from sbuslib import Topic
from sbuslib.blocking import Client
from sbuslib.errors import NoHubError, NoServerError, ReplyError


class Celsius(msgspec.Struct):
    degrees: float


class Fahrenheit(msgspec.Struct):
    degrees: float


QUESTIONS = Topic("convert/{unit}", Celsius)
ANSWERS = Topic(Fahrenheit)


def convert(celsius: Celsius, question: object) -> Fahrenheit:
    if celsius.degrees < -273.15:
        raise ReplyError("colder than possible")
    return Fahrenheit(celsius.degrees * 9 / 5 + 32)


def main(role: str, degrees: str = "0") -> None:
    with Client() as client:
        if role == "serve":
            answer = QUESTIONS.answers(convert, answer=ANSWERS)
            with client.serve(QUESTIONS.pattern(), answer, workers=4) as service:
                print("ready", flush=True)
                service.wait()  # until Ctrl-C, also while the hub is started again
        key = QUESTIONS.key(unit="fahrenheit")
        print(QUESTIONS.request(client, key, Celsius(float(degrees)), answer=ANSWERS, timeout=5).degrees)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (NoHubError, NoServerError, ReplyError) as error:
        sys.exit(str(error))
