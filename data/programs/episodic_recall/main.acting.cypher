// @desc: Answer from what was learned in earlier runs; find out with a tool what is new, and ask the user once where no tool tells
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
(act:Action {
  id: "act",
  tool: "Act",
  purpose: "Find out what is not known yet",
  prompt: "Choose the tool and the arguments that find the answer to this: {{ query }}",
  var_out: "found"
}),
(told:Decision {
  id: "told",
  purpose: "See whether the tool told the answer",
  question: "The question: {{ query }}\nWhat the tool told:\n{{ found }}\nIs the answer in it (FOUND) or not (MISSING)?",
  var_in: ["found"]
}),
(report:Action {
  id: "report",
  tool: "Speak",
  purpose: "Answer from what was found",
  prompt: "Answer the question from what was found.\nThe question: {{ query }}\nWhat was found:\n{{ found }}",
  var_in: ["found"]
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
(known)-[:NEW]->(act),
(known)-[:OTHERWISE]->(act),
(act)-[:NEXT]->(told),
(told)-[:FOUND]->(report),
(told)-[:MISSING]->(learn),
(told)-[:OTHERWISE]->(learn),
(report)-[:NEXT]->(end),
(learn)-[:NEXT]->(thank),
(thank)-[:NEXT]->(end),
(answer)-[:NEXT]->(end)
