// @desc: Think, act with a tool, look at what came of it, until the question can be answered
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(think:Action {
  id: "think",
  tool: "ChainOfThought",
  purpose: "Work out what to do next",
  prompt: "The question is: {{ query }}\nFrom the past steps, say in one or two sentences what is known by now, and what single thing to look up or do next. If enough is known, say so.",
  var_out: "thought"
}),
(enough:Decision {
  id: "enough",
  purpose: "Act once more, or answer",
  question: "The question is: {{ query }}\nThe thought is: {{ thought }}\nIs another action needed (ACT), or is enough known to answer (ANSWER)?",
  var_in: ["thought"]
}),
(act:Action {
  id: "act",
  tool: "Act",
  purpose: "Do what was thought of",
  prompt: "Choose the tool and the arguments for this: {{ thought }}",
  var_in: ["thought"]
}),
(answer:Action {
  id: "answer",
  tool: "Speak",
  purpose: "Answer the question",
  prompt: "Answer the question from what the past steps found, and from nothing else: {{ query }}"
}),
(start)-[:NEXT]->(think),
(think)-[:NEXT]->(enough),
(enough)-[:ACT]->(act),
(enough)-[:ANSWER]->(answer),
(enough)-[:OTHERWISE]->(answer),
(act)-[:NEXT]->(think),
(answer)-[:NEXT]->(end)
