// @desc: Answer from what was learned in earlier runs; ask the user once about what is new
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(recall:Action {
  id: "recall",
  tool: "PastActionSearch",
  purpose: "Recall earlier runs",
  prompt: "{{ query }}",
  var_out: "memories",
  disable_inference: true
}),
(known:Decision {
  id: "known",
  purpose: "Find out whether the answer is known",
  question: "The question: {{ query }}\nWhat is remembered:\n{{ memories }}\nIs the answer among what is remembered (KNOWN) or not (NEW)?",
  var_in: ["memories"]
}),
(learn:Action {
  id: "learn",
  tool: "AskUser",
  purpose: "Learn what is not known yet",
  prompt: "I do not know this yet, please tell me: {{ query }}",
  var_out: "told",
  disable_inference: true
}),
(thank:Action {
  id: "thank",
  tool: "Speak",
  purpose: "Confirm what was learned",
  prompt: "Thank you, I will remember: {{ told }}",
  var_in: ["told"],
  disable_inference: true
}),
(answer:Action {
  id: "answer",
  tool: "Speak",
  purpose: "Answer from memory",
  prompt: "Answer the question from what is remembered.\nThe question: {{ query }}\nWhat is remembered:\n{{ memories }}",
  var_in: ["memories"]
}),
(start)-[:NEXT]->(recall),
(recall)-[:NEXT]->(known),
(known)-[:KNOWN]->(answer),
(known)-[:NEW]->(learn),
(known)-[:OTHERWISE]->(learn),
(learn)-[:NEXT]->(thank),
(thank)-[:NEXT]->(end),
(answer)-[:NEXT]->(end)
