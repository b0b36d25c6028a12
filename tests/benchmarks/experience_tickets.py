"""Requests to an airline's desk, and the house code of the queue that each one goes to.

Nobody can know the codes who has not seen what the desk did before. `RECORDED` is what the memory
holds, `ASKED` are other requests of other customers.
"""

from __future__ import annotations

RECORDED: dict[str, tuple[str, ...]] = {
    "K7": (
        "My flight to Rome was cancelled and I want my money back.",
        "The booking was charged twice, please return one of the payments.",
        "When will the refund for my cancelled trip arrive?",
        "I gave up my ticket last week and still wait for the money.",
        "You promised to pay me back the fare of the flight that never left.",
    ),
    "B2": (
        "My suitcase did not come out on the belt in Lisbon.",
        "One wheel of my bag was broken when I picked it up.",
        "Where is my luggage? I landed two hours ago.",
        "I left a rucksack in the overhead locker on the plane.",
        "How many kilos may my checked bag weigh?",
    ),
    "R4": (
        "Can I have a seat at the window?",
        "My wife and I were put in different rows, please seat us together.",
        "I have long legs, is there a seat with more room?",
        "Please move me from the last row to one near the front.",
        "We need the row with a cot for our baby.",
    ),
    "M9": (
        "The miles of my flight in May are missing from my account.",
        "How many points do I need for silver status?",
        "My bonus points will expire, can you extend them?",
        "I want to pay for an upgrade with my miles.",
        "Please add last month's trip to my frequent flyer card.",
    ),
    "T1": (
        "My surname is spelled wrong on the ticket.",
        "I have to fly one day later, can you move my booking?",
        "Please change my return from Oslo to Bergen.",
        "Can I take the morning flight in place of the evening one?",
        "I married and my passport has a new name, please correct the booking.",
    ),
    "W5": (
        "My mother needs a wheelchair at the gate.",
        "I am deaf, how will I be told of changes at the airport?",
        "May my guide dog travel in the cabin?",
        "I cannot climb stairs, is there a lift to the aircraft?",
        "My son of nine flies alone, who looks after him?",
    ),
}
"""By queue, requests that the desk sent there."""

ASKED: dict[str, tuple[str, ...]] = {
    "K7": (
        "I was charged for a ticket that I never received, return the payment.",
        "How long does it take until I get the money for a cancelled flight?",
        "The airline cancelled, and I would like a refund and no voucher.",
        "You took the fare from my card two times.",
    ),
    "B2": (
        "My bag is still in Paris and I am in Vienna.",
        "The handle of my suitcase came off during the flight.",
        "I forgot my laptop on board, in the pocket before my seat.",
        "What does a second piece of checked luggage cost?",
    ),
    "R4": (
        "I would rather sit on the aisle than in the middle.",
        "Our family of four is spread over the whole cabin, can we sit together?",
        "Is there a row with more space for my knees?",
        "I get sick at the back, please give me a place near the front.",
    ),
    "M9": (
        "Why does my account not show the points of the trip to Madrid?",
        "What do I have to fly to reach gold status?",
        "Can I buy an upgrade with points?",
        "My miles ran out on Monday, may I have them back?",
    ),
    "T1": (
        "There is a letter missing in my first name on the booking.",
        "Can I fly on Friday in place of Thursday?",
        "I need another destination, Nice and not Lyon.",
        "An earlier flight home would suit me better, please move me to it.",
    ),
    "W5": (
        "My father cannot walk far, who takes him to the gate?",
        "I am blind and travel with a dog.",
        "Our daughter is eight and travels without us.",
        "Is the aircraft accessible for somebody who cannot use stairs?",
    ),
}
"""By queue, requests that are asked."""
