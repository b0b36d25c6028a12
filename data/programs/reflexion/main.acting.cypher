// @desc: Recall lessons, find out with tools, draft an answer, find fault with it and improve it until it stands
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
(think:Action {
  id: "think",
  tool: "ChainOfThought",
  purpose: "Work out what to do next",
  prompt: "What earlier runs did and learned:\n{{ lessons }}\n\nFrom these and from the past steps, say in one or two sentences what is known by now, what was wrong with a draft if there is one, and what single thing to look up or do next towards the objective. If enough is known, say so.",
  var_in: ["lessons"],
  var_out: "thought"
}),
(enough:Decision {
  id: "enough",
  purpose: "Act once more, or draft an answer",
  question: "The question is: {{ query }}\nThe thought is: {{ thought }}\nIs another action needed (ACT), or is enough known to draft an answer (DRAFT)?",
  var_in: ["thought"]
}),
(act:Action {
  id: "act",
  tool: "Act",
  purpose: "Do what was thought of",
  prompt: "Choose the tool and the arguments for this: {{ thought }}",
  var_in: ["thought"]
}),
(draft:Action {
  id: "draft",
  tool: "ChainOfThought",
  purpose: "Draft an answer",
  prompt: "Answer this from what the past steps found, without the mistakes they name: {{ query }}\n\nWhat earlier runs did and learned:\n{{ lessons }}",
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
(give:Action {
  id: "give",
  tool: "Speak",
  purpose: "Give the answer",
  prompt: "{{ answer }}",
  var_in: ["answer"],
  disable_inference: true
}),
(start)-[:NEXT]->(recall),
(recall)-[:NEXT]->(think),
(think)-[:NEXT]->(enough),
(enough)-[:ACT]->(act),
(enough)-[:DRAFT]->(draft),
(enough)-[:OTHERWISE]->(draft),
(act)-[:NEXT]->(think),
(draft)-[:NEXT]->(review),
(review)-[:NEXT]->(stands),
(stands)-[:GIVE]->(give),
(stands)-[:IMPROVE]->(think),
(stands)-[:OTHERWISE]->(give),
(give)-[:NEXT]->(end)
