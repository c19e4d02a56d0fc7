// Runs the checks of the Java client against one bootstrap address: java Main HOST:PORT PREFIX [CHECK ...]

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

public final class Main {
    public static void main(String[] args) throws Exception {
        Map<String, Callable<Void>> checks = new LinkedHashMap<>();
        new PlainChecks(args[0], args[1]).addTo(checks);
        new TransactionChecks(args[0], args[1]).addTo(checks);
        new GroupChecks(args[0], args[1]).addTo(checks);
        new AdminChecks(args[0], args[1]).addTo(checks);
        Runner.run(checks, List.of(args).subList(2, args.length), 60);
    }
}
