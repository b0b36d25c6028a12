// @desc: Recall lessons, draft an answer, find fault with it and improve it until it stands
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(recall:Action {
  id: "recall",
  tool: "PastActionSearch",
  purpose: "Recall what was learned from similar questions",
  prompt: "{{ query }}",
  var_out: "lessons",
  disable_inference: true
}),
(draft:Action {
  id: "draft",
  tool: "ChainOfThought",
  purpose: "Draft an answer",
  prompt: "Answer this: {{ query }}\n\nWhat earlier runs did and learned:\n{{ lessons }}",
  var_in: ["lessons"],
  var_out: "answer"
}),
(review:Action {
  id: "review",
  tool: "Predict",
  purpose: "Find fault with the answer and draw a lesson",
  prompt: "The question: {{ query }}\nThe answer: {{ answer }}\nName the worst mistake or gap, and what to do differently next time. If there is none, say that the answer stands.",
  var_in: ["answer"],
  var_out: "lesson"
}),
(stands:Decision {
  id: "stands",
  purpose: "Give the answer or improve it",
  question: "The question: {{ query }}\nThe answer: {{ answer }}\nThe review: {{ lesson }}\nCan the answer be given as it is (GIVE), or must it be improved (IMPROVE)?",
  var_in: ["answer", "lesson"]
}),
(improve:Action {
  id: "improve",
  tool: "ChainOfThought",
  purpose: "Improve the answer",
  prompt: "The question: {{ query }}\nThe answer so far: {{ answer }}\nWhat is wrong with it: {{ lesson }}\nWrite a better answer.",
  var_in: ["answer", "lesson"],
  var_out: "answer"
}),
(give:Action {
  id: "give",
  tool: "Speak",
  purpose: "Give the answer",
  prompt: "{{ answer }}",
  var_in: ["answer"],
  disable_inference: true
}),
(start)-[:NEXT]->(recall),
(recall)-[:NEXT]->(draft),
(draft)-[:NEXT]->(review),
(review)-[:NEXT]->(stands),
(stands)-[:GIVE]->(give),
(stands)-[:IMPROVE]->(improve),
(stands)-[:OTHERWISE]->(give),
(improve)-[:NEXT]->(review),
(give)-[:NEXT]->(end)
