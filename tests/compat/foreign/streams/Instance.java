// A process that runs `Application`, which a check starts, watches and kills.

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

final class Instance implements AutoCloseable {
    private final Process process;
    private final Set<String> states = ConcurrentHashMap.newKeySet();

    Instance(String... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx192m",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=" + System.getProperty("org.slf4j.simpleLogger.defaultLogLevel"),
                "-cp", System.getProperty("java.class.path"), "Application"));
        command.addAll(List.of(arguments));
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Thread listener = new Thread(this::listen);
        listener.setDaemon(true);
        listener.start();
    }

    private void listen() {
        try (BufferedReader said = process.inputReader()) {
            said.lines().filter(line -> line.startsWith("state ")).forEach(line -> states.add(line.substring(6)));
        }  catch (IOException ended) {
            states.add("ENDED");
        }
    }

    boolean was(String state) {
        World.hold(!states.contains("ERROR"), "the application stopped with an error: run again with --log warn");
        return states.contains(state);
    }

    // SIGKILL: nothing of it runs any more when this returns.
    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor(10, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws InterruptedException {
        kill();
    }
}
