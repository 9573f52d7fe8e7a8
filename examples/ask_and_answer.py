"""Request and reply with values of a type: a service that converts temperatures, and a program that asks it.

Try: sbus hub -a /tmp/bus
     and in another terminal: SBUS_ADDRESS=/tmp/bus python examples/ask_and_answer.py serve
     and in a third: SBUS_ADDRESS=/tmp/bus python examples/ask_and_answer.py ask 21.5
"""

import sys

import msgspec

from sbuslib import Topic
from sbuslib.blocking import Client
from sbuslib.errors import AnswerError, NoHubError, NoServerError


class Celsius(msgspec.Struct):
    degrees: float


class Fahrenheit(msgspec.Struct):
    degrees: float


QUESTIONS = Topic("convert/{unit}", Celsius)
ANSWERS = Topic(Fahrenheit)


def convert(celsius: Celsius, question: object) -> Fahrenheit:
    if celsius.degrees < -273.15:
        raise AnswerError("colder than possible")
    return Fahrenheit(celsius.degrees * 9 / 5 + 32)


def main(role: str, degrees: str = "0") -> None:
    try:
        client = Client()
    except NoHubError as error:
        sys.exit(str(error))
    with client:
        if role == "serve":
            with client.serve(QUESTIONS.pattern(), QUESTIONS.answers(convert, answer=ANSWERS), workers=4):
                print("ready", flush=True)
                client.receive()  # nothing ever comes: serve until Ctrl-C
        try:
            key = QUESTIONS.key(unit="fahrenheit")
            print(QUESTIONS.request(client, key, Celsius(float(degrees)), answer=ANSWERS, timeout=5).degrees)
        except (NoServerError, AnswerError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
