// @desc: Make a plan, carry it out step by step, report
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(plan:Action {
  id: "plan",
  tool: "ChainOfThought",
  purpose: "Make a plan",
  prompt: "Write a short numbered plan, at most five steps, each one use of a tool, for: {{ query }}",
  var_out: "plan"
}),
(carry_out:Program {
  id: "carry_out",
  purpose: "Carry out the plan",
  program: "carry_out"
}),
(report:Action {
  id: "report",
  tool: "Speak",
  purpose: "Report what was reached",
  prompt: "Answer the user from what the past steps reached: {{ query }}"
}),
(start)-[:NEXT]->(plan),
(plan)-[:NEXT]->(carry_out),
(carry_out)-[:NEXT]->(report),
(report)-[:NEXT]->(end)
