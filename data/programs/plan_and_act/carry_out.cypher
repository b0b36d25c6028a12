// @desc: Do the steps of a plan one after the other, and change the plan when it does not work
// @var_in: plan
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(step:Action {
  id: "step",
  tool: "Predict",
  purpose: "Pick the next step of the plan",
  prompt: "The plan:\n{{ plan }}\nFrom the past steps, which step comes next? Write that one step.",
  var_in: ["plan"],
  var_out: "step"
}),
(act:Action {
  id: "act",
  tool: "Act",
  purpose: "Do one step of the plan",
  prompt: "Choose the tool and the arguments for this: {{ step }}",
  var_in: ["step"],
  var_out: "outcome"
}),
(progress:Decision {
  id: "progress",
  purpose: "See how the plan goes",
  question: "The plan:\n{{ plan }}\nThe step: {{ step }}\nWhat came of it: {{ outcome }}\nIs the plan done (DONE), to be continued (CONTINUE), or to be changed (CHANGE)?",
  var_in: ["plan", "step", "outcome"]
}),
(change:Action {
  id: "change",
  tool: "ChainOfThought",
  purpose: "Change the plan",
  prompt: "The plan:\n{{ plan }}\nThe step: {{ step }}\nWhat came of it: {{ outcome }}\nWrite a new numbered plan for what is left to do, at most five steps, to reach: {{ objective }}",
  var_in: ["plan", "step", "outcome"],
  var_out: "plan"
}),
(start)-[:NEXT]->(step),
(step)-[:NEXT]->(act),
(act)-[:NEXT]->(progress),
(progress)-[:DONE]->(end),
(progress)-[:CONTINUE]->(step),
(progress)-[:CHANGE]->(change),
(progress)-[:OTHERWISE]->(end),
(change)-[:NEXT]->(step)
